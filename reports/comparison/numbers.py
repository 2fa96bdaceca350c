"""The numbers of one metric, by the places at which they may be compared."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from lra.reports.labels import labels_of
from lra.reports.rows import FINAL_SETTING, MARKS, as_text
from lra.reports.tables.costs import significant
from lra.reports.tables.scores import SCORES, TASK, Score, at_task_length
from lra.runners.metrics import METRICS

Hits = Callable[[str, str], tuple[Any, Any] | None]
"""From a cell and a split to places and outcomes of its examples; None where none are stored."""
Row = Mapping[Hashable, Any]
Place = tuple[tuple[str, str], ...]
"""Task, data, length and the like, by name: what the two of a pair share."""
SPEEDS = ("time", "tokens_per_second")
"""Metrics for which `time_ratio` has paired samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalTrainings:
    """The trainings that searches led to, which are compared in place of their trials."""

    options: str
    """What these have: `tuned` or `untuned` ones."""
    studies: Mapping[str, int]
    """By cell."""
    by_study: bool
    """Whether pairs share the study, and not the seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """The rows of one metric, and how its numbers are compared and printed."""

    metric: str
    split: str
    places: Mapping[Place, Mapping[str, Row]]
    """Rows by place (task, length and the like) and cell."""
    lost: Mapping[str, tuple[str, str, str]]
    """Task, length and ending of cells without a number."""
    settings: Mapping[str, Mapping[str, str]]
    """Of each cell, by dotted name."""
    hits: Hits
    ratios: Mapping[tuple[str, str], Row] = field(default_factory=dict)
    """Of a metric of speed, the paired ratios of times, by cell and the family of its reference."""
    ratios_of_processor: Mapping[tuple[str, str], Row] = field(default_factory=dict)
    """The same by the processors' clock."""
    beside: Mapping[str, frozenset[tuple[str, tuple[float, ...]]]] = field(default_factory=dict)
    """By cell, the references that it was timed in turns with, and the times of their passes."""
    trainings: FinalTrainings | None = None

    @property
    def score(self) -> Score:
        """Return title and unit of the metric."""
        m = self.metric
        return SCORES.get(m) or Score(metric=m, title=m, unit=METRICS[m].unit)

    def text(self, value: float, *, signed: bool = False) -> str:
        """Return a value as printed."""
        score = self.score
        size = f"{score.factor * abs(value):.{score.digits}f}"
        if score.metric not in SCORES:
            size = significant(abs(value))
        return ("−" if value < 0 else "+" if signed else "") + size


def numbers_of(
    frame: pd.DataFrame,
    settings: Mapping[str, Mapping[str, str]],
    metric: str,
    split: str,
    hits: Hits,
    *,
    trainings: FinalTrainings | None = None,
) -> Numbers:
    """Return the final rows of a metric, each with its `unit`: the seed, or the study, of a pair.

    Args:
        frame: prepared rows.
        settings: of each cell, by dotted name.
        metric: what is compared.
        split: of metrics that have splits.
        hits: outcomes of examples.
        trainings: those of searches, where there are any.
    """
    studies = trainings.studies if trainings and trainings.by_study else {}
    final = frame[frame["step"].isna()]
    usual = at_task_length(final)
    if metric in SCORES and (usual["metric"][usual["baseline"] == ""] == metric).any():
        final = usual
    bad = final[(final["status"] != "ok") & final["metric"].isin((metric, "accuracy"))]
    lost = {
        str(row["cell"]): (str(row["task"]), as_text(row["length"]), MARKS[row["status"]])
        for row in bad.to_dict("records")
    }
    rows = final[(final["metric"] == metric) & final["split"].isin((split, ""))]
    broken_off = rows["cell"].isin([*lost]) if metric in SCORES else rows["status"] != "ok"
    rows = rows[~broken_off]
    columns = TASK if metric in SCORES else ("mode", "length", *FINAL_SETTING)
    records: list[dict[Hashable, Any]] = rows.to_dict("records")
    for row in records:
        study = studies.get(str(row["cell"]))
        row["unit"] = ("seed", int(row["seed"])) if study is None else ("study", study)
    told = [
        {**labels_of(row["labels"]), "runner": "" if row["baseline"] else row["runner"]}
        for row in records
    ]
    within = varying_options(records, "cell", told)
    places: dict[Place, dict[str, Row]] = {}
    for row, labels in zip(records, told, strict=True):
        place = [(column, as_text(row[column])) for column in columns]
        place += [(name, labels[name]) for name in ("runner", *sorted(within)) if name in labels]
        places.setdefault((*place,), {})[f"{row['cell']} {row['baseline']}".rstrip()] = row
    paired = final[(final["metric"] == "time_ratio") & (final["status"] == "ok")]
    paired = paired if metric in SPEEDS else paired[:0]
    computed = final[(final["metric"] == "processor_time_ratio") & (final["status"] == "ok")]
    beside: dict[str, frozenset[tuple[str, tuple[float, ...]]]] = {}
    for row in final[final["metric"] == "reference_time"].to_dict("records") if len(paired) else ():
        shared = {(str(row["reference"]), tuple(row["samples"]))} if row["samples"] else set()
        beside[str(row["cell"])] = beside.get(str(row["cell"]), frozenset()) | shared
    return Numbers(
        metric=metric, split=split, places=places, lost=lost, settings=settings, hits=hits,
        trainings=trainings,
        ratios={(str(r["cell"]), str(r["reference"])): r for r in paired.to_dict("records")},
        ratios_of_processor={
            (str(r["cell"]), str(r["reference"])): r for r in computed.to_dict("records")
        },
        beside=beside,
    )  # fmt: skip


def varying_options(
    rows: Sequence[Row], column: str, options: Sequence[Mapping[str, str]]
) -> set[str]:
    """Return the options in which rows differ that are equal in a column."""
    groups: dict[Any, list[Mapping[str, str]]] = {}
    for row, of_row in zip(rows, options, strict=True):
        groups.setdefault(row[column], []).append(of_row)
    return {
        key
        for group in groups.values()
        for key in set().union(*group)
        if len({each[key] for each in group if key in each}) > 1
    }
