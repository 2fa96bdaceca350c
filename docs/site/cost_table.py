"""The tables of time and memory in docs/efficiency.md, made from the published rows."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from family_pages import BACKGROUND, by_length
from lra.composition.catalogue import names
from lra.composition.compose import core_of, group_file
from lra.models.mixer import Site, Unsupported
from lra.reports.rows import CostPoint, cost_points, cost_rows, prepare
from lra.reports.tables.costs import crossover_table
from lra.results.rows import published_cells, published_rows
from lra.sweep.model_names import with_backbones

Rows = dict[str, list[str]]
"""Texts of a table by model, without the column of names."""
PUBLISHED = Path(__file__).resolve().parents[2] / "reports/published"
MEASURED = {
    False: (
        "families-epyc",
        "families_state_spaces-epyc",
        "families_gated-epyc",
        "families_others-epyc",
        "families_rwkv6-xeon",
        "families_2026-epyc",
    ),
    True: (
        "families_causal-epyc",
        "families_state_spaces_causal-epyc",
        "families_gated_causal-epyc",
        "families_mesa_causal-xeon",
        "families_others_causal-epyc",
        "families_rwkv6_causal-xeon",
        "families_2026_causal-epyc",
    ),
    None: ("families_gpu-h100",),
}
"""Files of rows by kind of measurement: both directions, causal, a GPU (both directions)."""
LONGEST = {
    False: ("families_longest-xeon", "families_rwkv6-xeon", "families_2026-epyc"),
    True: (
        "families_longest_causal-xeon",
        "families_short_causal-xeon",
        "families_rwkv6_causal-xeon",
    ),
}
"""Files of rows for the table at 16,384 tokens. Gated families also have causal rows at 256."""
CPU = (("speed", "1,024"), ("speed", "4,096"), ("speed", "8,192"), ("memory", "8,192"))
GPU = (("speed", "16,384"), ("memory", "16,384"))
HEAD = (
    "model",
    "faster from",
    "speed at 1,024",
    "speed at 4,096",
    "speed at 8,192",
    "memory at 8,192",
)
HEAD_GPU = ("H100: speed at 16,384", "H100: memory")
REFERENCE = "sdpa"
SOURCED = ("rnnsearch",)
"""Families that need a source and a target, which `runner=scaling` has not."""
UNMEASURED = "–"
ONE_SIDED = " ‡"
"""Marks factors of a family that is causal although the task allows both directions."""


def points(measured: Sequence[str]) -> list[CostPoint]:
    """Return the training steps in the newest published rows of one kind of measurement."""
    files = [max(PUBLISHED.glob(f"{name}-*.jsonl")) for name in measured]
    rows = [with_backbones(published_rows(file), published_cells(file)) for file in files]
    held = [point for part in rows for point in cost_points(cost_rows(prepare(part)))]
    return [point for point in held if point.mode == "step"]


def cells(held: list[CostPoint], model: str, wanted: tuple[tuple[str, str], ...]) -> list[str]:
    """Return the factors of a model, or the reason for a missing one; empty without rows."""
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
    text = text.partition(" [")[0].replace("not up to ", "> ")
    return text if any(map(str.isdigit, text)) else "unclear" if text else UNMEASURED


def looks_back(model: str) -> bool:
    """Return whether a family at its defaults is causal even if both directions are allowed."""
    mixers, stack, _ = core_of(group_file("model", model), ())
    try:
        return stack is None and mixers[0](Site(width=64, heads=2, max_length=64)).traits.causal
    except Unsupported:
        return False


def marked(texts: Sequence[str], model: str) -> list[str]:
    """Return factors of both directions, with a mark if the family is causal."""
    mark = ONE_SIDED if looks_back(model) else ""
    return [text if text == UNMEASURED else text + mark for text in texts]


def heading(*head: str) -> str:
    """Return the first two lines of a table whose first column has names, the others numbers."""
    return "| " + " | ".join(head) + " |\n| --- |" + " ---: |" * (len(head) - 1)


def both_directions() -> Rows:
    """Return the rows of models that look to both sides, on processors and on a GPU."""
    held, on_gpu, rows = points(MEASURED[False]), points(MEASURED[None]), Rows()
    for model in families():
        found = cells(held, model, CPU)
        texts = [faster_from(held, model), *found] if found else [UNMEASURED] * 5
        texts = [*marked(texts, model), *(cells(on_gpu, model, GPU) or [UNMEASURED] * 2)]
        if {*texts} != {UNMEASURED}:
            rows[model] = texts
    return rows


def causal() -> Rows:
    """Return the rows of causal models."""
    held = points(MEASURED[True])
    found = {model: cells(held, model, CPU) for model in families()}
    return {model: [faster_from(held, model), *each] for model, each in found.items() if each}


def table_lines(rows: Rows, *head: str) -> list[str]:
    """Return the lines of a table of models."""
    return [heading(*head), *(line(model, texts) for model, texts in rows.items())]


def unmeasured(*tables: Collection[str]) -> Iterator[str]:
    """Yield the command that measures families without a row in any table, if there are some."""
    if missing := [model for model in families() if not any(model in each for each in tables)]:
        yield "These families have no published rows yet. This command measures them:"
        yield ""
        yield f"    lra run -m +experiment=families model={','.join(missing)}"


def finding(both: Rows, alone: Rows) -> str:
    """Return the sentences that count the families that are faster, from the two tables."""
    long, short = (HEAD.index(name) - 1 for name in ("speed at 8,192", "speed at 1,024"))
    counts, linear = [], []
    for rows in (both, alone):
        at_end = [texts[long].split()[0] for texts in rows.values()]
        factors = [text for text in at_end if text[0] in "≈0123456789"]
        faster = sum(text != "≈" and float(text) > 1 for text in factors)
        counts.append(f"{faster} of {len(factors)}")
        linear.append((rows["linear"][long], rows["linear"][short]))
    return (
        f"In the runs of `lra run -m +experiment=families`, {counts[0]} families train faster at "
        f"8,192 tokens than exact attention (SDPA), and {counts[1]} causal families. For example, "
        f"linear attention is {linear[0][0]} times as fast as SDPA at 8,192 tokens and "
        f"{linear[0][1]} times as fast at 1,024 tokens (causal: {linear[1][0]} and "
        f"{linear[1][1]} times)."
    )


def families() -> list[str]:
    """Return the families that are compared with exact attention."""
    return sorted({*names("model")} - {REFERENCE, *SOURCED})


def line(model: str, texts: Sequence[str]) -> str:
    """Return a line of a table, with a link to the page of the family."""
    return f"| [{model}](families/{model}.md) | {' | '.join(texts)} |"


def longest() -> Iterator[str]:
    """Yield a table of the families of state spaces, gates and delta rules at 16,384 tokens."""
    ways = {causal: points(files) for causal, files in LONGEST.items()}
    yield heading(
        "model", "speed", "memory", "causal: speed", "causal: memory", "causal: speed at 256"
    )
    for model in sorted({point.model for held in ways.values() for point in held} - {*BACKGROUND}):
        texts = marked(cells(ways[False], model, GPU) or [UNMEASURED] * 2, model)
        texts += cells(ways[True], model, (*GPU, ("speed", "256"))) or [UNMEASURED] * 3
        yield line(model, texts)
