"""What is on record of families: measured times and scores of rows, and scores of papers."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lra.composition.catalogue import names
from lra.composition.compose import facts, group_file
from lra.composition.run import Run
from lra.models.backbone.choices import CAUSAL_HEADS, TOKEN_HEADS, Head
from lra.reports.arena.literature import printed_scores
from lra.reports.rows import cost_points, cost_rows, prepare, settings
from lra.reports.tables.scores import ACCURACY, LANGUAGE, Score, accuracy_table
from lra.results.stored import published_with_names, stored

if TYPE_CHECKING:
    import pandas as pd

PUBLISHED = Path(str(resources.files("lra.reports"))) / "published"
"""Rows that come with a checkout; an installed package has none."""
SHELF = "reports/published/"
REFERENCE, MODE = "sdpa", "step"


class Evidence(NamedTuple):
    """One number on record."""

    value: float | None
    """None: printed as a failure."""
    source: str
    """Where it stands, and what it was measured on; "": nothing is known."""
    distance: tuple[float, ...] = (math.inf,)
    """From the question: of several, the nearest counts."""


def on_record(
    runs: Sequence[Run], results: Path, left_out: list[str]
) -> dict[str, dict[str, float | str | None]]:
    """Return the nearest `time_ratio`, `score` and `paper_score` of each run's family.

    Each has its source in a column `..._source`, "" where nothing is on record.

    Args:
        runs: Of one setting, as `lra.sweep.family_costs.runs_of` returns them.
        results: A store; where there is none, or it is empty, published rows are all.
        left_out: Gains what is wrong with each cell of it that cannot be read.
    """
    first = runs[0]
    (_, length), *_ = first.runner.cells(first.model, 0)
    causal = facts(first, length).head in CAUSAL_HEADS
    judged = LANGUAGE if Head[first.task.spec.kind.name] in TOKEN_HEADS else ()
    found: dict[str, dict[str, list[Evidence]]] = {
        run.model: {
            "time_ratio": [Evidence(1.0, "exact attention itself")] * (run.model == REFERENCE),
            "score": [], "paper_score": [*_paper_scores(run.model, first.task_name)],
        }
        for run in runs
    }  # fmt: skip
    for place, frame in _row_frames(results, first.task_name, left_out):
        times = _times(place, frame, length, causal=causal, device=str(first.hardware.device))
        scores = _scores(place, frame, first.task_name, (*judged, ACCURACY))
        for column, pairs in (("time_ratio", times), ("score", scores)):
            for family, evidence in pairs:
                if family in found:
                    found[family][column].append(evidence)
    record: dict[str, dict[str, float | str | None]] = {}
    for family, columns in found.items():
        record[family] = {}
        for column, several in columns.items():
            nearest = min(several, key=lambda each: each.distance, default=Evidence(None, ""))
            record[family] |= {column: nearest.value, f"{column}_source": nearest.source}
    return record


def _row_frames(
    results: Path, task: str, left_out: list[str]
) -> "Iterator[tuple[str, pd.DataFrame]]":
    """Yield the rows of a store, and of published files that tell of times or of the task."""
    if (results / "cells").is_dir():
        with suppress(FileNotFoundError):  # begun, and without rows
            rows, _, damaged = stored(results, None)
            left_out += damaged
            yield str(results), prepare(rows)
    scored = f'"task":"{task}"'.encode()
    for file in sorted(PUBLISHED.glob("*.jsonl")):
        content = file.read_bytes()  # most files are of something else
        if b'"time_ratio"' in content or (b'"split":"test"' in content and scored in content):
            yield f"{SHELF}{file.name}", prepare(published_with_names(file))


def _times(
    place: str, frame: "pd.DataFrame", length: int, *, causal: bool, device: str
) -> Iterator[tuple[str, Evidence]]:
    """Yield families with the time of a training step over that of exact attention.

    Nearest are rows of the same kind of device, of the store, of the same direction, of the nearest
    length, in this order.
    """
    timed = cost_rows(frame)
    for part in settings(timed) if len(timed) else ():
        first = part.rows.iloc[0]
        kind = _device(str(first["hardware"]))
        families = dict(zip(part.rows["name"], part.rows["family"], strict=True))
        for point in cost_points(part.rows):
            ratio = point.time_ratio.get(REFERENCE)
            family = families[point.model]
            if point.mode != MODE or ratio is None or ratio.value is None or point.model != family:
                continue
            way = "causal" if first["causal"] else "bidirectional"
            machine = f"{first['device']}, {first['precision']}"
            yield (
                family,
                Evidence(
                    value=ratio.value,
                    source=f"{point.length:,} tokens, {way}, {machine}: {place}",
                    distance=(
                        kind != device,
                        place.startswith(SHELF),
                        bool(first["causal"]) != causal,
                        abs(math.log2(point.length / length)),
                    ),
                ),
            )


def _device(hardware: str) -> str:
    """Return the kind of device of a profile; "" for one that is not here."""
    return str(group_file("hardware", hardware)["device"]) if hardware in names("hardware") else ""


def _scores(
    place: str, frame: "pd.DataFrame", task: str, judged: Sequence[Score]
) -> Iterator[tuple[str, Evidence]]:
    """Yield families with the first score that a task has on the test split, means over seeds.

    Nearest are rows of the store, of these the best. A regime makes another task of a
    classification.
    """
    frame = frame[(frame["task"] == task) & (frame["baseline"] == "")]
    frame = frame if len(judged) > 1 else frame[frame["regime"] == ""]
    families = dict(zip(frame["name"], frame["family"], strict=True))
    forms = Counter(families.values())
    seen = frame[frame["metric"] == "examples_seen"].groupby("cell")["value"].max()
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
            yield (
                family,
                Evidence(
                    value=value,
                    source=f"{score.title.lower()}{after}, {column.title}{form}: {place}",
                    distance=(place.startswith(SHELF), -value if score.shares else value),
                ),
            )


def _paper_scores(family: str, task: str) -> Iterator[Evidence]:
    """Yield what papers report of a family at a task; the best is the nearest."""
    for score in printed_scores(family, task):
        yield Evidence(score.percent, f"accuracy, {score.source}", (-(score.percent or 0.0),))
