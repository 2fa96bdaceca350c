"""The table of what every family costs, from the published rows: a part of docs/efficiency.md."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from family_pages import BACKGROUND, by_length
from lra.composition.catalogue import names
from lra.composition.compose import core_of, group_file
from lra.models.mixer import Site, Unsupported
from lra.reports.rows import CostPoint, cost_points, cost_rows, prepare
from lra.reports.tables.costs import crossover_table
from lra.results.rows import published_cells, published_rows
from lra.sweep.model_names import with_backbones

PUBLISHED = Path(__file__).resolve().parents[2] / "reports/published"
MEASURED = {
    False: (
        "families-epyc",
        "families_state_spaces-epyc",
        "families_gated-epyc",
        "families_others-epyc",
        "families_rwkv6-xeon",
    ),
    True: (
        "families_causal-epyc",
        "families_state_spaces_causal-epyc",
        "families_gated_causal-epyc",
        "families_mesa_causal-xeon",
        "families_others_causal-epyc",
        "families_rwkv6_causal-xeon",
    ),
    None: ("families_gpu-h100",),
}
"""Files of rows whose places in the table are: both directions, causal, a GPU."""
LONGEST = {
    False: ("families_longest-xeon", "families_rwkv6-xeon"),
    True: (
        "families_longest_causal-xeon",
        "families_short_causal-xeon",
        "families_rwkv6_causal-xeon",
    ),
}
"""The same of the table at 16,384 tokens; gated families were measured causal at 256, too."""
CPU = (("speed", "1,024"), ("speed", "4,096"), ("speed", "8,192"), ("memory", "8,192"))
GPU = (("speed", "16,384"), ("memory", "16,384"))
HEAD = [
    "model",
    *("faster from", "speed at 1,024", "4,096", "8,192", "memory"),
    *("causal: faster from", "speed at 1,024", "4,096", "8,192", "memory"),
    *("H100: speed at 16,384", "memory"),
]
REFERENCE = "sdpa"
UNMEASURED = "–"
ONE_SIDED = " ‡"
"""Behind what a family that looks back alone has where both directions are in view."""


def points(measured: Sequence[str]) -> list[CostPoint]:
    """Return what the newest published rows of one place in a table hold of training steps."""
    files = [max(PUBLISHED.glob(f"{name}-*.jsonl")) for name in measured]
    rows = [with_backbones(published_rows(file), published_cells(file)) for file in files]
    held = [point for part in rows for point in cost_points(cost_rows(prepare(part)))]
    return [point for point in held if point.mode == "step"]


def cells(held: list[CostPoint], model: str, wanted: tuple[tuple[str, str], ...]) -> list[str]:
    """Return factors of a model, or why there is none; empty where it has no rows."""
    table = by_length([point for point in held if point.model == model], "step", "")
    if table is None:
        return []
    lengths = [column.title for column in table.columns]
    texts = {
        (row.title.partition(",")[0], length): entry.text
        for row in table.rows
        for length, entry in zip(lengths, row.entries, strict=True)
    }
    reasons = {length: text for (_, length), text in texts.items() if text.isalpha()}
    return [texts.get(place) or reasons.get(place[1], UNMEASURED) for place in wanted]


def faster_from(held: list[CostPoint], model: str) -> str:
    """Return the length from which a model is faster than exact attention, without interval."""
    table = crossover_table([point for point in held if point.model == model])
    text = table.rows[0].entries[0].text if table and table.rows else ""
    return text.partition(" [")[0] or UNMEASURED


def looks_back(model: str) -> bool:
    """Return whether a family, at its defaults, computes no more where later tokens may be seen."""
    mixers, stack, _ = core_of(group_file("model", model), ())
    try:
        return stack is None and mixers[0](Site(width=64, heads=2, max_length=64)).traits.causal
    except Unsupported:
        return False


def marked(texts: Sequence[str], model: str) -> list[str]:
    """Return factors of both directions, marked where the family has but one."""
    mark = ONE_SIDED if looks_back(model) else ""
    return [text if text == UNMEASURED else text + mark for text in texts]


def costs() -> Iterator[str]:
    """Yield a table with a line for each family that has rows, and what measures the others."""
    ways = {causal: points(files) for causal, files in MEASURED.items()}
    yield "| " + " | ".join(HEAD) + " |"
    yield "| --- |" + " ---: |" * (len(HEAD) - 1)
    missing = []
    for model in sorted({*names("model")} - {REFERENCE}):
        line = [f"[{model}](families/{model}.md)"]
        for causal in (False, True):
            found = cells(ways[causal], model, CPU)
            texts = [faster_from(ways[causal], model), *found] if found else [UNMEASURED] * 5
            line += texts if causal else marked(texts, model)
        line += cells(ways[None], model, GPU) or [UNMEASURED] * 2
        if {*line[1:]} == {UNMEASURED}:
            missing.append(model)
        else:
            yield f"| {' | '.join(line)} |"
    if missing:
        yield ""
        yield "Without published rows, and what measures them:"
        yield ""
        yield f"    lra run -m +experiment=families model={','.join(missing)}"


def longest() -> Iterator[str]:
    """Yield a table of the families of state spaces, gates and delta rules at 16,384 tokens."""
    ways = {causal: points(files) for causal, files in LONGEST.items()}
    head = ("model", "speed", "memory", "causal: speed", "memory", "speed at 256")
    yield "| " + " | ".join(head) + " |"
    yield "| --- |" + " ---: |" * (len(head) - 1)
    for model in sorted({point.model for held in ways.values() for point in held} - {*BACKGROUND}):
        line = marked(cells(ways[False], model, GPU) or [UNMEASURED] * 2, model)
        line += cells(ways[True], model, (*GPU, ("speed", "256"))) or [UNMEASURED] * 3
        yield f"| [{model}](families/{model}.md) | {' | '.join(line)} |"
