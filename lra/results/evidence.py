"""What is on record of families: measured times and scores of rows, and scores of papers.

Of published rows, which stay in the repository, `published_rows.json` has what is needed here, so
that an installed package answers as a clone does. `python tests/lra/results/published_digest.py`
makes it.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lra.composition.binding import plain
from lra.composition.catalogue import names
from lra.composition.class_path import locate
from lra.composition.compose import facts, group_file
from lra.composition.run import Run
from lra.models.backbone.choices import CAUSAL_HEADS, TOKEN_HEADS, Head
from lra.reports.arena.literature import printed_scores
from lra.reports.rows import by_setting, cost_points, cost_rows, prepare
from lra.reports.tables.scores import ACCURACY, LANGUAGE, Score, accuracy_table
from lra.results.rows import stored_rows
from lra.runners.records import Status
from lra.sweep.identity import decisive
from lra.tasks.task import Task

if TYPE_CHECKING:
    import pandas as pd

DIGEST = Path(__file__).with_name("published_rows.json")
SHELF = "reports/published/"
REFERENCE, MODE = "sdpa", "step"


class Provenance(NamedTuple):
    """Where numbers come from."""

    task: str
    """Whose scores they are; "": times of training steps over those of exact attention."""
    about: str
    """What was scored, or the machine that was timed."""
    place: str
    """The file or the store."""
    device: str = ""
    """Of times, the kind of device: cpu or cuda; "" for a profile that is not here."""
    causal: bool = False
    """Of times."""
    setting: str = ""
    """Of seconds of a training step on a GPU, for which there is one setting: which; "": ratios."""


class Evidence(NamedTuple):
    """One number of rows."""

    origin: Provenance
    family: str
    length: int
    """Tokens of the timed sequences; 0 for scores."""
    value: float
    """Of seconds 0 where the memory did not suffice."""

    @property
    def source(self) -> str:
        """Say what it is, and where it stands."""
        task, about, place, _, causal, _ = self.origin
        way = "causal" if causal else "bidirectional"
        return f"{'' if task else f'{self.length:,} tokens, {way}, '}{about}: {place}"

    def distance(self, length: int, device: str, *, causal: bool) -> tuple[float, ...]:
        """Return how far it is from the question: of several, the nearest counts.

        Nearest are times of the same kind of device, of the store, of the same direction, of the
        nearest length, in this order; scores of the store, of these the best.
        """
        task, about, place, kind, looks_back, _ = self.origin
        foreign = place.startswith(SHELF)
        if task:
            return (foreign, -self.value if about.startswith("accuracy") else self.value)
        far = abs(math.log2(self.length / length))
        return (kind != device, foreign, looks_back != causal, far)


@cache
def published_evidence(file: Path) -> Sequence[Evidence]:
    """Return what published rows tell."""
    return [
        Evidence(Provenance(*origin), family, int(length), value)
        for origin, families in json.loads(file.read_text(encoding="utf-8"))
        for family, values in families.items()
        for length, value in values.items()
    ]


def on_record(
    runs: Sequence[Run], results: Path, left_out: list[str], *, scores: bool
) -> dict[str, dict[str, float | str | bool | None]]:
    """Return the nearest `time_ratio`, `score` and `paper_score` of each run's family.

    Each has its source in a column `..._source`, "" where nothing is on record; `time_ratio_alike`
    says whether that is of the kind of device and of the direction that are asked about. A training
    step measured on this GPU at this very setting gives `step_s`, `fits` and `step_source`.

    Args:
        runs: Of one setting, as `lra.sweep.family_costs.runs_of` returns them.
        results: A store; where there is none, or it is empty, published rows are all.
        left_out: Gains what is wrong with each cell of the store that cannot be read.
        scores: Whether scores of the task are wanted.
    """
    first = runs[0]
    (_, length), *_ = first.runner.cells(first.model, 0)
    causal, device = facts(first, length).head in CAUSAL_HEADS, str(first.hardware.device)
    known, tasks = [*published_evidence(DIGEST)], {first.task_name: first.task}
    if (results / "cells").is_dir():
        with suppress(FileNotFoundError):  # begun, and without rows
            rows, cells, damaged = stored_rows(results, None)
            left_out += damaged
            known += evidence_of(str(results), prepare(rows), tasks, cells)
    known.sort(key=lambda each: each.distance(length, device, causal=causal))
    found: dict[str, dict[str, float | str | bool | None]] = {}
    for run in runs:
        here = [each for each in known if each.family == run.model]
        own = [(e.origin.task, e.value, e.source) for e in here if not e.origin.setting]
        timed = (e for e in here if not (e.origin.task or e.origin.setting))
        nearest = next(timed, None)
        papers = printed_scores(run.model, first.task_name)
        papers.sort(key=lambda score: -(score.percent or 0.0))
        columns: dict[str, list[tuple[float | None, str]]] = {
            "time_ratio": [(value, source) for task, value, source in own if not task],
            "score": [(v, s) for task, v, s in own if scores and task == first.task_name],
            "paper_score": [(p.percent, f"accuracy, {p.source}") for p in papers if scores],
        }
        if run.model == REFERENCE:
            columns["time_ratio"] = [(1.0, "exact attention itself")]
        alike = nearest is not None and nearest.origin[3:5] == (device, causal)
        found[run.model] = {"time_ratio_alike": alike or run.model == REFERENCE}
        found[run.model] |= _measured(run, length, causal, here)
        for column, several in columns.items():
            value, source = next(iter(several), (None, ""))
            found[run.model] |= {column: value, f"{column}_source": source}
    return found


def _measured(
    run: Run, length: int, causal: bool, known: Sequence[Evidence]
) -> dict[str, float | str | bool | None]:
    """Return what a training step took at the very setting of a run; "" as source: not known."""
    hardware, batch = run.hardware, run.config["runner"]["batch_size"]
    options = {name: value for name, value in run.mixer_options.items() if name != "class_path"}
    changed = decisive(locate(str(run.mixer_options["class_path"]), run.config["plugins"]), options)
    changed |= {name: options[name] for name in ("layers", "others") if name in options}
    machine = f"{run.task_name} on {hardware.name}, {hardware.precision}, batch {batch}"
    setting = _setting(machine, plain(run.backbone), changed)
    for each in known:
        origin = each.origin
        if (origin.setting, each.length, origin.causal) != (setting, length, causal):
            continue
        if each.value:
            return {"step_s": each.value, "fits": True, "step_source": each.source}
        if hardware.memory_limit_bytes is None:
            return {"fits": False, "step_source": f"out of memory: {each.source}"}
    return {"step_source": ""}


def evidence_of(
    place: str,
    frame: "pd.DataFrame",
    tasks: Mapping[str, Task],
    cells: Mapping[str, Mapping[str, Any]],
) -> Iterator[Evidence]:
    """Yield the times of rows, and their scores of tasks, which stand under their names.

    `cells` are those of the rows, as `lra.results.rows.stored_rows` returns them.
    """
    yield from _times(place, frame)
    yield from _seconds(place, frame, cells)
    for name, task in tasks.items():
        judged = LANGUAGE if Head[task.spec.kind.name] in TOKEN_HEADS else ()
        yield from _scores(place, frame, name, (*judged, ACCURACY))


def _times(place: str, frame: "pd.DataFrame") -> Iterator[Evidence]:
    """Yield the times of training steps over those of exact attention."""
    timed = cost_rows(frame)
    for part in by_setting(timed) if len(timed) else ():
        first = part.rows.iloc[0]
        about = f"{first['device']}, {first['precision']}"
        device, causal = _device(str(first["hardware"])), bool(first["causal"])
        origin = Provenance(task="", about=about, place=place, device=device, causal=causal)
        families = dict(zip(part.rows["name"], part.rows["family"], strict=True))
        for point in cost_points(part.rows):
            ratio = point.time_ratio.get(REFERENCE)
            if point.mode != MODE or ratio is None or ratio.value is None:
                continue
            if point.model == families[point.model]:  # a family as its file has it, no variant
                yield Evidence(origin, point.model, point.length, ratio.value)


def _seconds(
    place: str, frame: "pd.DataFrame", cells: Mapping[str, Mapping[str, Any]]
) -> Iterator[Evidence]:
    """Yield how long steps of families took on GPUs with the options of their files."""
    timed = frame[(frame["metric"] == "time") & (frame["mode"] == MODE)]
    for row in timed[timed["status"].isin((Status.ok, Status.out_of_memory))].to_dict("records"):
        cell = cells.get(row["cell"], {})
        mixer, described = cell.get("identity", {}).get("mixer", {}), cell.get("described", {})
        if described.get("device") != "cuda":
            continue
        length = int(row["length"])
        budget = int(described["machine"]["token_budget"])
        batch = described["runner"]["batch_size"] or max(1, budget // length)
        precision = str(row["precision"])
        machine = f"{row['task']} on {row['hardware']}, {precision}, batch {batch}"
        setting = _setting(machine, described["backbone"], mixer)
        about = f"{row['device']}, {precision}"
        origin = Provenance("", about, place, "cuda", bool(row["causal"]), setting)
        lost = row["status"] != Status.ok
        yield Evidence(origin, str(row["family"]), length, 0.0 if lost else float(row["value"]))


SIZES = (
    "width", "heads", "head_width", "depth", "feed_forward", "feed_forward_width", "norm",
    "positions", "activation_checkpointing",
)  # fmt: skip
"""Options of the backbone that decide how long a step takes."""


def _setting(machine: str, backbone: Mapping[str, Any], mixer: Mapping[str, Any]) -> str:
    """Return what decides the time of a training step, but the length and whether it is causal.

    The version of a family counts what changed its numbers, not its time.
    """
    sizes = ", ".join(f"{name}={backbone.get(name)}" for name in SIZES)
    options = "".join(f", {k}={v}" for k, v in sorted(mixer.items()) if k != "version")
    return f"{machine}, {sizes}{options}"


def _device(hardware: str) -> str:
    """Return the kind of device of a profile; "" for one that is not here."""
    return str(group_file("hardware", hardware)["device"]) if hardware in names("hardware") else ""


def _scores(
    place: str, frame: "pd.DataFrame", task: str, judged: Sequence[Score]
) -> Iterator[Evidence]:
    """Yield the first score that a task has on the test split, means over seeds.

    A regime makes another task of a classification.
    """
    frame = frame[(frame["task"] == task) & (frame["baseline"] == "")]
    frame = frame if len(judged) > 1 else frame[frame["regime"] == ""]
    families = dict(zip(frame["name"], frame["family"], strict=True))
    forms = Counter(families.values())
    seen = frame[frame["metric"] == "examples_seen"].groupby("cell")["value"].max()
    scales = {
        row["cell"]: f", scale {row['scale']} (length {row['length']:.0f})" if row["scale"] else ""
        for row in frame[["cell", "scale", "length"]].drop_duplicates("cell").to_dict("records")
    }
    tables = ((score, accuracy_table(frame, "test", score)) for score in judged)
    score, table = next(((s, t) for s, t in tables if t is not None), (ACCURACY, None))
    for row in table.rows if table else ():
        family = families[row.title]
        form = f", {row.title}" if forms[family] > 1 else ""
        for column, entry in zip(table.columns if table else (), row.entries, strict=True):
            if entry.value is None:
                continue
            value = entry.value * score.factor
            examples = max((seen.get(cell, 0.0) for cell in entry.cells), default=0.0)
            after = f" after {examples:,.0f} training examples" if examples else ""
            about = f"{score.title.lower()}{after}, {column.title}{form}"
            about += "".join(sorted({scales[cell] for cell in entry.cells}))
            yield Evidence(Provenance(task, about, place), family, 0, value)
