"""How many times as fast a model is as another, where the passes of both were interleaved.

A machine that drifts slows both, so their ratio is known far better than the difference of seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lra.reports.comparison.numbers import Numbers, Row
from lra.reports.statistics.intervals import LEVEL, Interval, median_interval
from lra.reports.tables.costs import inverted

UNTIMED = "not timed interleaved, so no ratio: runner.references names what a model is timed with"


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How many times as fast the first of two is as the second."""

    factor: float
    interval: Interval | None
    passes: int
    disturbed: tuple[str, ...]
    """What disturbed the machine in the meantime."""

    @property
    def differs(self) -> bool:
        """Return whether the interval, of `LEVEL`, leaves out 1."""
        ends = self.interval
        return ends is not None and ends.level >= LEVEL and not ends.low <= 1 <= ends.high


def speed_of(numbers: Numbers, pairs: Sequence[tuple[Row, Row]]) -> Speed | None:
    """Return how fast the first rows of pairs are, one of whose models is a reference of the other.

    None where no such ratios are stored.
    """
    for inverse in (False, True):
        turned = [pair[::-1] if inverse else pair for pair in pairs]
        keys = [(str(a["cell"]), str(b["family"])) for a, b in turned]
        several = any(name.startswith("mixer.") for _, b in turned for name in b["options"])
        if several or not all(key in numbers.ratios for key in keys):
            continue  # of several configurations the reference is one, and not known which
        rows = [numbers.ratios[key] for key in keys]
        samples = [s for row in rows for s in (row["samples"] or (row["value"],))]
        middle, ends = float(np.median(samples)), median_interval(samples)
        if not inverse:  # seconds of the first by those of the second
            middle, ends = 1 / middle, inverted(ends)
        disturbed = tuple(row["disturbed"] for row in rows)
        return Speed(factor=middle, interval=ends, passes=len(samples), disturbed=disturbed)
    return None
