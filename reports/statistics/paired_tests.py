"""Differences between two models: pairs are trainings that share task, seed and other settings.

A paired difference removes what both have in common, such as the batches of a seed. The test is
the paired t test, which fits the t interval: p < 0.05 exactly where 0 lies outside 95 %. Of several
tests, p by Holm's method fits the interval at the level of `holm_levels` in the same way.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

from lra.reports.statistics.intervals import (
    LEVEL,
    Interval,
    Uncertainty,
    mean_interval,
    t_quantile,
    wilson_interval,
)

POWER = 0.8
"""Of the smallest detectable difference: how often a true one of this size would be detected."""
ALPHA = 1 - LEVEL
"""Below which a p value is significant."""
MOST_FLIPPED = 20
"""Values of which all choices of signs are counted."""
_EQUAL = 1e-9
"""Relative size below which a spread is rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanDifference:
    """The mean of paired differences, and what its spread over pairs says."""

    mean: float
    pairs: int
    interval: Interval | None = None
    p: float | None = None
    """Two-sided, of no difference in the mean; None for one pair and for equal differences."""
    detectable: float | None = None
    """The true difference that as many further pairs detect in `POWER` of the cases in which it was
    computed like this: of normal differences, whose spread these pairs estimate."""


def mean_difference(
    first: Sequence[float],
    second: Sequence[float],
    *,
    level: float = LEVEL,
    source: Uncertainty = Uncertainty.seeds,
) -> MeanDifference:
    """Return the mean of first minus second, with its t interval and the paired t test.

    Without spread (one pair, or equal differences) a t test says nothing: there is the mean alone.

    Args:
        first: a number for each pair.
        second: the same, in the same order.
        level: of the interval, and 1 minus it of the test that detects.
        source: what tells the pairs from each other.
    """
    x, y = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    differences = x - y
    mean, pairs = float(differences.mean()), int(differences.size)
    spread = float(differences.std(ddof=1)) if pairs > 1 else 0.0
    if spread <= _EQUAL * max(float(np.abs(x).max()), float(np.abs(y).max())):
        return MeanDifference(mean=mean, pairs=pairs)
    degrees, error = pairs - 1, spread / math.sqrt(pairs)
    return MeanDifference(
        mean=mean,
        pairs=pairs,
        interval=mean_interval([float(value) for value in differences], source, level),
        p=float(2 * special.stdtr(degrees, -abs(mean / error))),
        detectable=_detected(degrees, level) * error,
    )


@cache
def _detected(degrees: int, level: float) -> float:
    """Return how many standard errors, as estimated, a true mean is that `POWER` of tests detect.

    A test of other pairs has the spread that these estimate, but not their estimate of it: with the
    latter taken for the spread, three pairs have a power of 63 % where 80 % is said. Both estimates
    are independent; s is one of them, in units of the spread.
    """
    points = (np.arange(100) + 0.5) / 100
    s = np.sqrt(special.chdtri(degrees, 1 - points) / degrees)
    limit = t_quantile(0.5 + level / 2, degrees)
    low, high = limit, 1000 * limit
    while high > 1.0001 * low:
        middle = math.sqrt(low * high)
        mean, reach = middle * s[:, None], limit * s
        power = float((special.ndtr(mean - reach) + special.ndtr(-mean - reach)).mean())
        low, high = (middle, high) if power < POWER else (low, middle)
    return low


def sign_flip_p(differences: Sequence[float]) -> float:
    """Return the two-sided p of a mean of differences whose signs are as likely either way.

    It is the share of all choices of signs that give a mean at least as far from 0: exact, for any
    distribution that is symmetric. Above `MOST_FLIPPED` values the normal limit takes its place.
    """
    x = np.asarray(differences, dtype=np.float64)
    size = float(np.sqrt((x * x).sum()))
    if size == 0.0:
        return 1.0
    if x.size > MOST_FLIPPED:
        return float(2 * special.ndtr(-abs(float(x.sum())) / size))
    sums: NDArray[np.float64] = np.zeros(1)
    for value in x:
        sums = np.concatenate((sums + value, sums - value))
    return float((np.abs(sums) >= abs(float(x.sum())) - _EQUAL * size).mean())


def share_difference_interval(first: tuple[float, int], second: tuple[float, int]) -> Interval:
    """Return Newcombe's interval of the difference of two shares, each with its examples.

    It takes them for independent (method 10 of doi:10.1002/(SICI)1097-0258(19980430)17:8<873), and
    is too wide where both models are right about the same examples.
    """
    a, b = wilson_interval(*first), wilson_interval(*second)
    difference = first[0] - second[0]
    low = difference - math.hypot(first[0] - a.low, b.high - second[0])
    high = difference + math.hypot(a.high - first[0], second[0] - b.low)
    return Interval(low, high, Uncertainty.examples, LEVEL)


def holm(p: Sequence[float]) -> list[float]:
    """Return p values corrected for their number by Holm's method, in the same order."""
    order = sorted(range(len(p)), key=lambda index: p[index])
    corrected, least = [0.0] * len(p), 0.0
    for rank, index in enumerate(order):
        least = max(least, min(1.0, (len(p) - rank) * p[index]))
        corrected[index] = least
    return corrected


def holm_levels(p: Sequence[float]) -> list[float]:
    """Return the level at which Holm's method tests each of several p values, in the same order.

    It is 1 - `ALPHA` / n, where n counts the tests that are left at the step of a rejected one; of
    the others, at the step where it stops. So an interval of this level leaves out 0 exactly where
    the corrected p is below `ALPHA`. Each covers with at least `LEVEL`; all of them together need
    not.
    """
    rejected = sum(value < ALPHA for value in holm(p))
    levels = [LEVEL] * len(p)
    for rank, index in enumerate(sorted(range(len(p)), key=lambda index: p[index])):
        levels[index] = 1 - ALPHA / (len(p) - min(rank, rejected))
    return levels
