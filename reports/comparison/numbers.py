"""Collect the numbers of one metric by place: task, length and other columns that pairs share."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from lra.reports.labels import labels_of
from lra.reports.rows import FINAL_SETTING, MARKS, as_text
from lra.reports.tables.costs import significant
from lra.reports.tables.scores import SCORES, TASK, Score, at_task_length, unit_words
from lra.runners.metrics import METRICS

Hits = Callable[[str, str], tuple[Any, Any] | None]
"""A function of the key of a run and a split. It returns the numbers and the outcomes of the
examples that the run answered, or None if they are not stored."""
Row = Mapping[Hashable, Any]
Place = tuple[tuple[str, str], ...]
"""Names and values of the columns that both runs of a pair share, such as task and length."""
MOST = 3
"""The most settings that a note names."""
SPEEDS = ("time", "tokens_per_second")
"""Metrics of speed. Rows of `time_ratio` have their paired samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalTrainings:
    """The final trainings after hyperparameter searches, which are compared instead of trials."""

    options: str
    """`tuned` for the options that the search chose; `untuned` for those from before it."""
    studies: Mapping[str, int]
    """The number of the study (repetition of the search), by the key of a run."""
    by_study: bool
    """Whether the runs of a pair share the study; otherwise, they share the seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """The rows of one metric, and how its numbers are compared and printed."""

    metric: str
    split: str
    places: Mapping[Place, Mapping[str, Row]]
    """The rows at each place, by the key of their run."""
    lost: Mapping[str, tuple[str, str, str]]
    """Task, length and status of the runs without a number, by the key of the run."""
    settings: Mapping[str, Mapping[str, str]]
    """The options of each run, by the key of the run and the dotted name of the option."""
    hits: Hits
    ratios: Mapping[tuple[str, str], Row] = field(default_factory=dict)
    """For a metric of speed: rows of `time_ratio`, by the key of a run and its reference."""
    ratios_of_processor: Mapping[tuple[str, str], Row] = field(default_factory=dict)
    """The same ratios by the processors' clock."""
    beside: Mapping[str, frozenset[tuple[str, tuple[float, ...]]]] = field(default_factory=dict)
    """The references that were timed interleaved with a run, with the times of their passes, by
    the key of the run."""
    trainings: FinalTrainings | None = None

    @property
    def score(self) -> Score:
        """Return the title, the unit and the number of digits of the metric."""
        name = self.metric
        unit = unit_words(METRICS[name].unit)
        return SCORES.get(name) or Score(metric=name, title=name, unit=unit)

    def text(self, value: float, *, signed: bool = False) -> str:
        """Return a value as printed; `signed` adds a plus sign to values that are not negative."""
        score = self.score
        digits = f"{score.factor * abs(value):.{score.digits}f}"
        if score.metric not in SCORES:
            digits = significant(abs(value))
        return ("−" if value < 0 else "+" if signed else "") + digits


def numbers_of(
    frame: pd.DataFrame,
    settings: Mapping[str, Mapping[str, str]],
    metric: str,
    split: str,
    hits: Hits,
    *,
    trainings: FinalTrainings | None = None,
) -> Numbers:
    """Return the final rows of a metric by place; each row gets a `unit`, its seed or its study.

    Args:
        frame: rows from `lra.reports.rows.prepare`.
        settings: the options of each run, by the key of the run and the dotted name of the option.
        metric: the metric that is compared.
        split: the split of the data; rows of metrics without splits are used, too.
        hits: a function that returns outcomes of examples; see `Hits`.
        trainings: the final trainings of searches; None if there was no search.
    """
    studies = trainings.studies if trainings and trainings.by_study else {}
    final = frame[frame["step"].isna()]
    at_training_length = at_task_length(final)
    models = at_training_length[at_training_length["baseline"] == ""]
    if metric in SCORES and (models["metric"] == metric).any():
        final = at_training_length
    failures = final[(final["status"] != "ok") & final["metric"].isin((metric, "accuracy"))]
    lost = {
        str(row["cell"]): (str(row["task"]), as_text(row["length"]), MARKS[row["status"]])
        for row in failures.to_dict("records")
    }
    rows = final[(final["metric"] == metric) & final["split"].isin((split, ""))]
    # A failed training may have stored scores before it failed; they are excluded.
    failed = rows["cell"].isin([*lost]) if metric in SCORES else rows["status"] != "ok"
    rows = rows[~failed]
    columns = TASK if metric in SCORES else ("mode", "length", *FINAL_SETTING)
    records: list[dict[Hashable, Any]] = rows.to_dict("records")
    for row in records:
        study = studies.get(str(row["cell"]))
        row["unit"] = ("seed", int(row["seed"])) if study is None else ("study", study)
    row_labels = [
        {**labels_of(row["labels"]), "runner": "" if row["baseline"] else row["runner"]}
        for row in records
    ]
    varying_labels = varying_options(records, "cell", row_labels)
    places: dict[Place, dict[str, Row]] = {}
    for row, labels in zip(records, row_labels, strict=True):
        place = [(column, as_text(row[column])) for column in columns]
        names = ("runner", *sorted(varying_labels))
        place += [(name, labels[name]) for name in names if name in labels]
        places.setdefault((*place,), {})[f"{row['cell']} {row['baseline']}".rstrip()] = row
    ratios = final[(final["metric"] == "time_ratio") & (final["status"] == "ok")]
    ratios = ratios if metric in SPEEDS else ratios[:0]
    by_processor = final[(final["metric"] == "processor_time_ratio") & (final["status"] == "ok")]
    beside: dict[str, frozenset[tuple[str, tuple[float, ...]]]] = {}
    for row in final[final["metric"] == "reference_time"].to_dict("records") if len(ratios) else ():
        passes = {(str(row["reference"]), tuple(row["samples"]))} if row["samples"] else set()
        beside[str(row["cell"])] = beside.get(str(row["cell"]), frozenset()) | passes
    return Numbers(
        metric=metric, split=split, places=places, lost=lost, settings=settings, hits=hits,
        trainings=trainings,
        ratios={(str(r["cell"]), str(r["reference"])): r for r in ratios.to_dict("records")},
        ratios_of_processor={
            (str(r["cell"]), str(r["reference"])): r for r in by_processor.to_dict("records")
        },
        beside=beside,
    )  # fmt: skip


def further_differences(
    rows: Sequence[tuple[Row, Row]],
    settings: Mapping[str, Mapping[str, str]],
    asked: tuple[str, ...],
) -> list[str]:
    """Return a note about settings in which the sides differ, although nobody asked for it.

    Args:
        rows: pairs of results, one of each side.
        settings: the options of each run, by its key.
        asked: beginnings of the names of settings in which the sides are meant to differ.
    """
    differing: dict[str, str] = {}
    for first_row, second_row in rows:
        first, second = settings[str(first_row["cell"])], settings[str(second_row["cell"])]
        # An option that only one side has belongs to its family, so only shared ones are compared.
        # The protocol comes first, because it sets many others.
        for key in sorted(
            first.keys() & second.keys(), key=lambda name: (name != "protocol", name)
        ):
            if first[key] != second[key] and not key.startswith(asked):
                differing.setdefault(key, f"{key} ({first[key]}, {second[key]})")
    if not differing:
        return []
    rest = f" and {len(differing) - MOST} more" if len(differing) > MOST else ""
    names = ", ".join([*differing.values()][:MOST])
    return [f"the two sides differ in further settings: {names}{rest}"]


def varying_options(
    rows: Sequence[Row], column: str, options: Sequence[Mapping[str, str]]
) -> set[str]:
    """Return the names of options in which rows with the same value of `column` differ.

    Args:
        rows: rows of results.
        column: the column that forms groups of rows.
        options: the options of each row, in the order of `rows`.
    """
    groups: dict[Any, list[Mapping[str, str]]] = {}
    for row, row_options in zip(rows, options, strict=True):
        groups.setdefault(row[column], []).append(row_options)
    return {
        key
        for group in groups.values()
        for key in set().union(*group)
        if len({mapping[key] for mapping in group if key in mapping}) > 1
    }
