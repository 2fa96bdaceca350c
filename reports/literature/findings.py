"""Recompute what published tables derive from other figures, and say what does not add up."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from statistics import fmean, pstdev, stdev

from lra.reports.literature.record import Origin, PublishedFigure, PublishedRecord

FAILURES: Mapping[str, float | None] = {
    "five_tasks": None,
    "six_tasks_failure_50": 50.0,
    "six_tasks_failure_0": 0.0,
}
"""The three means that are called "the LRA average", and what a failed Path-X counts in each: the
mean of five tasks excludes Path-X."""
CLOSE = 1e-9
"""Tolerance of sums of decimal numbers."""


class CheckKind(StrEnum):
    """What is recomputed, or compared with another figure."""

    mean = "means recomputed from their tasks"
    ratio = "speeds divided by that of exact attention"
    column = "means and deviations over the models of a table"
    quote = "quoted figures compared with their source"
    ceiling = "scores compared with the highest possible score"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One figure that was checked."""

    kind: CheckKind
    figure: PublishedFigure
    expected: float
    right: bool
    finding: str
    """A sentence about a wrong figure; "" if it is right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """Different figures of one system on one task, each trained by the authors of its source."""

    system: str
    task: str
    figures: Sequence[PublishedFigure]
    """By value, the lowest first."""

    @property
    def spread(self) -> float:
        """The highest value minus the lowest."""
        values = [f.value for f in self.figures if f.value is not None]
        return max(values) - min(values)


def lint(record: PublishedRecord) -> list[Check]:
    """Return a check of every figure that can be recomputed or compared."""
    found: list[Check] = []
    for figure in record.figures:
        makers = (_check_mean, _check_ratio, _check_quote, _check_ceiling)
        found += [check for make in makers if (check := make(figure, record)) is not None]
        if figure.system == figure.table.mean_row:
            found += _check_column(figure, record)
    return found


def part_values(
    figure: PublishedFigure, record: PublishedRecord, tasks: Sequence[str], failure: float | None
) -> list[tuple[float, float]] | None:
    """Return (value, half a unit of its last digit) of the tasks of a mean; None if one is missing.

    Args:
        figure: the mean.
        record: the record.
        tasks: the tasks of the mean.
        failure: percent that a failed task counts; None: the chance of the task, if it is known.
    """
    parts = []
    for task in tasks:
        label = figure.table.cells_of or figure.table.label
        part = record.figure(label, figure.system, task, figure.metric, figure.split, figure.at)
        if part is None:
            return None
        if part.value is None:
            percent = record.tasks[task].chance if failure is None else failure
            if percent is None:
                return None
            parts.append((percent, 0.0))
        else:
            parts.append((part.value, part.half_unit))
    return parts


def _check_mean(figure: PublishedFigure, record: PublishedRecord) -> Check | None:
    """Recompute a mean over tasks; None if a part is not in the record."""
    term = record.averages.get(figure.task)
    if term is None or figure.value is None:
        return None
    failure = figure.table.failure
    percent = failure if isinstance(failure, int | float) else None
    swapped = [record.tasks[task].like or task for task in term.of]
    parts = part_values(figure, record, term.of, percent)
    as_swapped = part_values(figure, record, swapped, percent) if parts is None else None
    values = parts or as_swapped
    if values is None:
        return None
    expected = fmean(value for value, _ in values)
    right = _agrees(figure, expected, values) and parts is not None
    finding = ""
    if parts is None:
        other = next(task for task, name in zip(term.of, swapped, strict=True) if task != name)
        finding = (
            f"the mean counts {record.tasks[other].like} as {other}: {expected:.2f}"
            if _agrees(figure, expected, values)
            else f"its figures give {expected:.2f}"
        )
    elif not right:
        finding = f"its {len(term.of)} figures give {expected:.2f}" + _other_rule(figure, record)
    return Check(
        kind=CheckKind.mean, figure=figure, expected=expected, right=right, finding=finding
    )


def _agrees(
    figure: PublishedFigure, expected: float, parts: Sequence[tuple[float, float]]
) -> bool:
    """Return whether a printed mean differs from that of its parts by rounding alone."""
    rounding = fmean(half for _, half in parts) + figure.half_unit
    return figure.value is not None and abs(figure.value - expected) <= rounding + CLOSE


def _other_rule(figure: PublishedFigure, record: PublishedRecord) -> str:
    """Return words about another rule by which a printed mean adds up; "" if there is none."""
    for name, mean in arena_means(figure, record).items():
        parts = part_values(figure, record, record.averages["five_tasks"].of, None)
        if parts is not None and _agrees(figure, mean, parts):
            return f"; {figure.text} is the mean {name}"
    return ""


def arena_means(figure: PublishedFigure, record: PublishedRecord) -> dict[str, float]:
    """Return, by name of the rule, each mean of the Long Range Arena that a system's figures allow.

    `figure` is any figure of the system; without one of Path-X, only five_tasks can be computed.
    """
    means = {}
    for name, failure in FAILURES.items():
        tasks = record.averages["five_tasks" if failure is None else "six_tasks"].of
        parts = part_values(figure, record, tasks, failure)
        if parts is not None:
            means[name] = fmean(value for value, _ in parts)
    return means


def _check_ratio(figure: PublishedFigure, record: PublishedRecord) -> Check | None:
    """Recompute a speed relative to that of exact attention in the same table."""
    reference = figure.table.ratio_of
    if not reference or figure.metric != "speedup_vs_transformer":
        return None
    speeds = [
        record.figure(figure.table.label, system, figure.task, "steps_per_second", "", figure.at)
        for system in (figure.system, reference)
    ]
    over, under = speeds
    if over is None or under is None or None in (over.value, under.value, figure.value):
        return None
    assert over.value and under.value and figure.value  # for the type checker
    low = (over.value - over.half_unit) / (under.value + under.half_unit)
    high = (over.value + over.half_unit) / (under.value - under.half_unit)
    right = low - figure.half_unit - CLOSE <= figure.value <= high + figure.half_unit + CLOSE
    expected = over.value / under.value
    finding = "" if right else f"{over.text} / {under.text} steps per second give {expected:.2f}"
    return Check(
        kind=CheckKind.ratio, figure=figure, expected=expected, right=right, finding=finding
    )


def _check_column(figure: PublishedFigure, record: PublishedRecord) -> Iterator[Check]:
    """Recompute a mean over the models of a table, and the deviation that its `at` names."""
    values = [
        other.value
        for other in record.figures
        if other.table is figure.table and other is not figure and other.value is not None
        if (other.task, other.metric) == (figure.task, figure.metric)
    ]
    deviation = figure.at.removeprefix("deviation=")
    for printed, expected in ((figure.text, fmean(values)), (deviation, pstdev(values))):
        # A deviation may be that of a sample, which is larger.
        as_sample = expected if printed == figure.text else stdev(values)
        half = 0.5 * 10.0 ** -len(printed.partition(".")[2]) + CLOSE
        right = min(abs(float(printed) - x) for x in (expected, as_sample)) <= half
        finding = "" if right else f"{len(values)} models give {expected:.2f}, printed {printed}"
        yield Check(
            kind=CheckKind.column, figure=figure, expected=expected, right=right, finding=finding
        )


def _check_quote(figure: PublishedFigure, record: PublishedRecord) -> Check | None:
    """Compare a quoted figure with the table that it is quoted from, if the record has both."""
    original = record.figure(figure.quoted_from, *figure.identity)
    if original is None or original.value is None or figure.value is None:
        return None
    rounding = max(figure.half_unit, original.half_unit)
    right = abs(figure.value - original.value) <= rounding + CLOSE
    finding = "" if right else f"{original.table.place} prints {original.text}"
    return Check(
        kind=CheckKind.quote, figure=figure, expected=original.value, right=right, finding=finding
    )


def _check_ceiling(figure: PublishedFigure, record: PublishedRecord) -> Check | None:
    """Compare a score with the highest score that the training rows allow."""
    term = record.tasks.get(figure.task)
    if term is None or term.ceiling is None or figure.value is None:
        return None
    right = figure.value <= term.ceiling + figure.half_unit + CLOSE
    finding = "" if right else f"no model of this setting can exceed {term.ceiling:g}"
    return Check(
        kind=CheckKind.ceiling, figure=figure, expected=term.ceiling, right=right, finding=finding
    )


def mixed_tables(record: PublishedRecord) -> list[tuple[str, Mapping[str, Sequence[str]]]]:
    """Return the tables whose source prints means over different tasks, with systems by mean."""
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for figure in record.figures:
        if (average := record.averages.get(figure.task)) is not None:
            by_mean = found.setdefault((figure.table.place, average.group), {})
            by_mean.setdefault(figure.task, []).append(figure.system)
    return [(place, by_mean) for (place, _), by_mean in found.items() if len(by_mean) > 1]


def disagreements(record: PublishedRecord) -> Iterator[Disagreement]:
    """Yield tasks on which sources print different accuracies of one system, the widest first."""
    own = [
        f for f in record.figures
        if f.unit == "%" and f.metric.endswith("accuracy") and f.split == "test"
        and f.value is not None and f.origin is not Origin.quoted and f.task in record.tasks
    ]  # fmt: skip

    def key(figure: PublishedFigure) -> tuple[str, str, str, str]:
        return figure.system, figure.task, figure.metric, figure.at

    found = []
    for (system, task, _, _), group in groupby(sorted(own, key=key), key):
        figures = sorted(group, key=lambda f: f.value or 0.0)
        if len({f.table.source for f in figures}) > 1:
            found.append(Disagreement(system=system, task=task, figures=figures))
    yield from sorted(found, key=lambda d: -d.spread)
