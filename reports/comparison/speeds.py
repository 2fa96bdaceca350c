"""Compute how many times as fast one model is as another, from interleaved passes of both.

A change of the machine's speed slows both models alike, so their ratio is far more certain than the
difference of their seconds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lra.reports.comparison.numbers import Numbers, Row
from lra.reports.rows import PROCESSOR, Value
from lra.reports.statistics.intervals import LEVEL, Interval
from lra.reports.tables.costs import invert

UNTIMED = (
    "the two models were not timed interleaved: to get a ratio of their times, add the other model "
    "to runner.references"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How many times as fast the first of two models is as the second."""

    factor: float
    interval: Interval | None
    passes: int
    disturbed: tuple[str, ...]
    """What disturbed the machine during the measurements."""
    clock: str = "wall"
    """The clock of the seconds: `wall`, or `processor`, which excludes waiting."""

    @property
    def differs(self) -> bool:
        """Return whether there is an interval of `LEVEL` or more that excludes 1."""
        interval = self.interval
        if interval is None or interval.level < LEVEL:
            return False
        return not interval.low <= 1 <= interval.high


def speed_of(numbers: Numbers, pairs: Sequence[tuple[Row, Row]]) -> Speed | None:
    """Return how many times as fast the first model of each pair is as the second.

    The ratios are stored if one of the models is a reference of the other. They are computed here
    if passes of both models were interleaved. Return None if neither is the case.

    Args:
        numbers: the numbers of a metric of speed.
        pairs: rows of the first and of the second model with the same place and seed.
    """
    for inverse in (False, True):
        # model and reference, in this order
        ordered = [pair[::-1] if inverse else pair for pair in pairs]
        keys = [(str(model["cell"]), str(reference["family"])) for model, reference in ordered]
        # With changed options of a mixer, the stored reference may be another configuration.
        changed = any(name.startswith("mixer.") for _, b in ordered for name in b["options"])
        if changed or not all(key in numbers.ratios for key in keys):
            continue
        rows = [numbers.ratios[key] for key in keys]
        by_wall = _merge_ratios(rows)
        by_processor = _merge_ratios([numbers.ratios_of_processor.get(key) for key in keys])
        if by_wall is not None:
            return _speed_of_ratio(by_wall.or_processor(by_processor), rows, inverse=inverse)
    if all(_interleaved(numbers, a, b) for a, b in pairs):
        samples = [x / y for a, b in pairs for x, y in zip(a["samples"], b["samples"], strict=True)]
        rows = [row for pair in pairs for row in pair]
        why = next((str(row["disturbed"]) for row in rows if row["disturbed"]), "")
        ratio = Value(value=float(np.median(samples)), samples=(*samples,), disturbed=why)
        return _speed_of_ratio(ratio, rows, inverse=False)
    return None


def _interleaved(numbers: Numbers, first: Row, second: Row) -> bool:
    """Return whether the passes of two runs were interleaved.

    They were if both runs store the same passes of a reference, and equally many of their own.
    """
    first_passes, second_passes = (
        numbers.beside.get(str(row["cell"]), frozenset()) for row in (first, second)
    )
    equal = len(first["samples"]) == len(second["samples"]) > 0
    return numbers.metric == "time" and equal and not first_passes.isdisjoint(second_passes)


def _merge_ratios(rows: Sequence[Row | None]) -> Value | None:
    """Return the median over the ratios of all rows; None if one of the rows is missing."""
    if None in rows:
        return None
    samples = [s for row in rows if row for s in (row["samples"] or (row["value"],))]
    why = next((str(row["disturbed"]) for row in rows if row and row["disturbed"]), "")
    return Value(value=float(np.median(samples)), samples=(*samples,), disturbed=why)


def _speed_of_ratio(ratio: Value, rows: Sequence[Row], *, inverse: bool) -> Speed:
    """Return a ratio of times as a speed of the first model.

    The ratio is (time of the first model) / (time of the second); if `inverse`, it is reversed.
    """
    factor, interval = ratio.value or math.nan, ratio.interval()
    if not inverse:
        factor, interval = 1 / factor, invert(interval)
    disturbed = tuple(row["disturbed"] for row in rows)
    clock = "processor" if ratio.mark == PROCESSOR else "wall"
    passes = len(ratio.samples)
    return Speed(factor=factor, interval=interval, passes=passes, disturbed=disturbed, clock=clock)
