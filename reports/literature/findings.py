"""Recompute what published tables derive from other figures, and say what does not add up."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from statistics import fmean, pstdev, stdev

from lra.reports.literature.record import FigureOrigin, PublishedFigure, PublishedRecord

FAILURES: Mapping[str, float | None] = {
    "five_tasks": None, "six_tasks_failure_50": 50.0, "six_tasks_failure_0": 0.0,
}  # fmt: skip
"""The three means that are called "the LRA average", and what a failed Path-X counts in each: the
mean of five tasks excludes Path-X."""
_SUM = 1e-9
"""Tolerance of sums of decimal numbers."""


class CheckKind(StrEnum):
    """What is recomputed, or compared with another figure."""

    mean = "means, recomputed from their tasks"
    ratio = "speeds relative to exact attention, recomputed from steps per second"
    column = "means and deviations over the models of a table, recomputed"
    quote = "quoted figures, compared with their source"
    ceiling = "scores, compared with the highest possible score"


@dataclass(frozen=True, slots=True)
class RecordCheck:
    """One figure that was checked."""

    kind: CheckKind
    figure: PublishedFigure
    expected: float
    finding: str = ""
    """What is wrong, in words; "" if the figure is right."""


def lint(record: PublishedRecord) -> list[RecordCheck]:
    """Return a check of every figure that can be recomputed or compared."""
    makers = (_check_mean, _check_ratio, _check_column, _check_quote, _check_ceiling)
    return [check for f in record.figures for make in makers for check in make(f, record)]


def _parts(
    mean: PublishedFigure, record: PublishedRecord, tasks: Sequence[str], failure: float | None
) -> list[tuple[float, float]]:
    """Return (value, half a unit of its last digit) of each task of a mean; [] if one is missing.

    A failed task counts `failure` percent; None stands for its chance.
    """
    label = mean.table.cells_of or mean.table.label
    parts: list[tuple[float, float]] = []
    for task in tasks:
        part = record.find(label, mean, task=task)
        counted = record.tasks[task].chance if failure is None else failure
        if part is None or (part.value is None and counted is None):
            return []
        is_number = part.value is not None
        parts.append((part.value or 0.0, part.half_unit) if is_number else (counted or 0.0, 0.0))
    return parts


def _agrees(mean: PublishedFigure, parts: Sequence[tuple[float, float]]) -> bool:
    """Return whether a printed mean differs from that of its parts by rounding alone."""
    rounding = fmean(half for _, half in parts) + mean.half_unit
    difference = (mean.value or 0.0) - fmean(value for value, _ in parts)
    return abs(difference) <= rounding + _SUM


def arena_means(figure: PublishedFigure, record: PublishedRecord) -> dict[str, float]:
    """Return, by the names of `FAILURES`, the means that the figures of a system allow."""
    means = {}
    for name, failure in FAILURES.items():
        tasks = record.averages["five_tasks" if failure is None else "six_tasks"].of
        if parts := _parts(figure, record, tasks, failure):
            means[name] = fmean(value for value, _ in parts)
    return means


def _check_mean(mean: PublishedFigure, record: PublishedRecord) -> Iterator[RecordCheck]:
    term = record.averages.get(mean.task)
    if term is None or mean.value is None:
        return
    failure = None if isinstance(mean.table.failure, str) else mean.table.failure
    like = [record.tasks[task].like or task for task in term.of]
    parts, finding = _parts(mean, record, term.of, failure), ""
    if not parts and (parts := _parts(mean, record, like, failure)):
        finding = f"it counts {', '.join({*like} - {*term.of})} in place of the task of the mean"
    if not parts:
        return
    expected = fmean(value for value, _ in parts)
    if not _agrees(mean, parts):
        others = arena_means(mean, record) if "five" in mean.task or "six" in mean.task else {}
        names = [n for n, m in others.items() if abs(m - mean.value) <= mean.half_unit + _SUM]
        finding = f"its {len(parts)} figures give {expected:.2f}"
        finding += f"; {mean.text} is the mean {names[0]}" if names else ""
    yield RecordCheck(CheckKind.mean, mean, expected, finding)


def _check_ratio(ratio: PublishedFigure, record: PublishedRecord) -> Iterator[RecordCheck]:
    if not ratio.table.ratio_of or ratio.metric != "speedup_vs_transformer":
        return
    speeds = {"metric": "steps_per_second"}
    over = record.find(ratio.table.label, ratio, **speeds)
    under = record.find(ratio.table.label, ratio, system=ratio.table.ratio_of, **speeds)
    if not (over and under and over.value and under.value and ratio.value):
        return
    low = (over.value - over.half_unit) / (under.value + under.half_unit) - ratio.half_unit
    high = (over.value + over.half_unit) / (under.value - under.half_unit) + ratio.half_unit
    right = low - _SUM <= ratio.value <= high + _SUM
    expected = over.value / under.value
    finding = "" if right else f"{over.text} / {under.text} steps per second give {expected:.2f}"
    yield RecordCheck(CheckKind.ratio, ratio, expected, finding)


def _check_column(mean: PublishedFigure, record: PublishedRecord) -> Iterator[RecordCheck]:
    """Recompute a mean over the models of a table, and the deviation that its `at` names."""
    if mean.system != mean.table.mean_row:
        return
    values = [
        f.value for f in record.figures
        if f.table is mean.table and f.system != mean.system and f.value is not None
        and (f.task, f.metric) == (mean.task, mean.metric)
    ]  # fmt: skip
    deviation = mean.at.removeprefix("deviation=")
    # The deviation may be that of a sample, or of all models.
    for printed, possible in (
        (mean.text, [fmean(values)]), (deviation, [stdev(values), pstdev(values)]),
    ):  # fmt: skip
        half = 0.5 * 10.0 ** -len(printed.partition(".")[2])
        right = any(abs(float(printed) - x) <= half + _SUM for x in possible)
        finding = "" if right else f"{len(values)} models give {possible[0]:.2f}, not {printed}"
        yield RecordCheck(CheckKind.column, mean, possible[0], finding)


def _check_quote(quote: PublishedFigure, record: PublishedRecord) -> Iterator[RecordCheck]:
    source = record.find(quote.quoted_from, quote)
    if source is None or source.value is None or quote.value is None:
        return
    rounding = max(quote.half_unit, source.half_unit)
    right = abs(quote.value - source.value) <= rounding + _SUM
    finding = "" if right else f"{source.table.place} prints {source.text}"
    yield RecordCheck(CheckKind.quote, quote, source.value, finding)


def _check_ceiling(score: PublishedFigure, record: PublishedRecord) -> Iterator[RecordCheck]:
    term = record.tasks.get(score.task)
    if term is None or term.ceiling is None or score.value is None:
        return
    right = score.value <= term.ceiling + score.half_unit + _SUM
    finding = "" if right else f"with the task's training rows, the most is {term.ceiling:g}"
    yield RecordCheck(CheckKind.ceiling, score, term.ceiling, finding)


def mixed_tables(record: PublishedRecord) -> dict[str, dict[str, list[str]]]:
    """Return, by place, the tables that print means over different tasks: systems by mean."""
    found: dict[str, dict[str, list[str]]] = {}
    for f in record.figures:
        if f.task in record.averages:
            found.setdefault(f.table.place, {}).setdefault(f.task, []).append(f.system)
    return {place: by_mean for place, by_mean in found.items() if len(by_mean) > 1}


def disagreements(record: PublishedRecord) -> list[list[PublishedFigure]]:
    """Return groups of accuracies of one system on one task, in which sources differ.

    The widest group is first; a group begins with its lowest figure. Quoted figures are excluded.
    """
    scores = [
        f for f in record.figures
        if f.unit == "%" and f.metric in ("accuracy", "macro_accuracy") and f.split == "test"
        and f.value is not None and f.origin is not FigureOrigin.quoted and f.task in record.tasks
    ]  # fmt: skip
    scores.sort(key=lambda f: (f.identity, f.value))
    groups = [[*group] for _, group in groupby(scores, key=lambda f: f.identity)]
    several = [group for group in groups if len({f.table.source for f in group}) > 1]
    return sorted(several, key=lambda g: (g[0].value or 0.0) - (g[-1].value or 0.0))
