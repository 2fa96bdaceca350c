"""Differences between two models: pairs are trainings that share task, seed and other settings.

A paired difference removes what both have in common, such as the batches of a seed. The test is
the paired t test, which fits the t interval: p < 0.05 exactly where 0 lies outside 95 %.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

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
    """The smallest true difference that as many pairs of this spread detect with `POWER`."""


def mean_difference(first: Sequence[float], second: Sequence[float]) -> MeanDifference:
    """Return the mean of first minus second, with its t interval and the paired t test.

    Without spread (one pair, or equal differences) a t test says nothing: there is the mean alone.
    """
    x, y = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    differences = x - y
    mean, pairs = float(differences.mean()), int(differences.size)
    spread = float(differences.std(ddof=1)) if pairs > 1 else 0.0
    if spread <= _EQUAL * max(float(np.abs(x).max()), float(np.abs(y).max())):
        return MeanDifference(mean=mean, pairs=pairs)
    degrees, error = pairs - 1, spread / math.sqrt(pairs)
    # the noncentral t distribution exceeds the limit of the test with probability POWER
    shift = special.nctdtrinc(degrees, 1 - POWER, t_quantile(0.5 + LEVEL / 2, degrees))
    return MeanDifference(
        mean=mean,
        pairs=pairs,
        interval=mean_interval([float(value) for value in differences]),
        p=float(2 * special.stdtr(degrees, -abs(mean / error))),
        detectable=float(shift) * error,
    )


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
