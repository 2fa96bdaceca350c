"""How many times as fast a model is as another, where the passes of both were interleaved.

A machine that drifts slows both, so their ratio is known far better than the difference of seconds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lra.reports.comparison.numbers import Numbers, Row
from lra.reports.rows import PROCESSOR, Value
from lra.reports.statistics.intervals import LEVEL, Interval
from lra.reports.tables.costs import invert

UNTIMED = "no ratio of interleaved passes is stored: add the other model to runner.references"


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How many times as fast the first of two is as the second."""

    factor: float
    interval: Interval | None
    passes: int
    disturbed: tuple[str, ...]
    """What disturbed the machine in the meantime."""
    clock: str = "wall"
    """Whose seconds are compared: wall, or processor, which leaves out waiting."""

    @property
    def differs(self) -> bool:
        """Return whether the interval, of `LEVEL`, leaves out 1."""
        ends = self.interval
        return ends is not None and ends.level >= LEVEL and not ends.low <= 1 <= ends.high


def speed_of(numbers: Numbers, pairs: Sequence[tuple[Row, Row]]) -> Speed | None:
    """Return how fast the first rows of pairs are, one of whose models is a reference of the other.

    None where neither such ratios are stored, nor passes of both that were timed in turns.
    """
    for inverse in (False, True):
        turned = [pair[::-1] if inverse else pair for pair in pairs]
        keys = [(str(a["cell"]), str(b["family"])) for a, b in turned]
        several = any(name.startswith("mixer.") for _, b in turned for name in b["options"])
        if several or not all(key in numbers.ratios for key in keys):
            continue  # of several configurations the reference is one, and not known which
        rows = [numbers.ratios[key] for key in keys]
        found = _pooled(rows)
        other = _pooled([numbers.ratios_of_processor.get(key) for key in keys])
        if found is not None:
            return _speed(found.or_processor(other), rows, inverse=inverse)
    if all(_together(numbers, a, b) for a, b in pairs):
        samples = [x / y for a, b in pairs for x, y in zip(a["samples"], b["samples"], strict=True)]
        rows = [row for pair in pairs for row in pair]
        why = next((str(row["disturbed"]) for row in rows if row["disturbed"]), "")
        ratio = Value(value=float(np.median(samples)), samples=(*samples,), disturbed=why)
        return _speed(ratio, rows, inverse=False)
    return None


def _together(numbers: Numbers, one: Row, other: Row) -> bool:
    """Tell whether the passes of two cells were timed in turns: beside the same of a reference."""
    mine, theirs = (numbers.beside.get(str(row["cell"]), frozenset()) for row in (one, other))
    equal = len(one["samples"]) == len(other["samples"]) > 0
    return numbers.metric == "time" and equal and not mine.isdisjoint(theirs)


def _pooled(rows: Sequence[Row | None]) -> Value | None:
    """Return the ratios of several cells as one; None where one of them has none."""
    if None in rows:
        return None
    samples = [s for row in rows if row for s in (row["samples"] or (row["value"],))]
    why = next((str(row["disturbed"]) for row in rows if row and row["disturbed"]), "")
    return Value(value=float(np.median(samples)), samples=(*samples,), disturbed=why)


def _speed(ratio: Value, rows: Sequence[Row], *, inverse: bool) -> Speed:
    """Return a ratio of seconds, first by second unless inverse, as a speed."""
    middle, ends = ratio.value or math.nan, ratio.interval()
    if not inverse:
        middle, ends = 1 / middle, invert(ends)
    disturbed = tuple(row["disturbed"] for row in rows)
    clock = "processor" if ratio.mark == PROCESSOR else "wall"
    return Speed(
        factor=middle, interval=ends, passes=len(ratio.samples), disturbed=disturbed, clock=clock
    )
