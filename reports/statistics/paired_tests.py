"""Tests of differences between two models, from pairs of trainings with the same task and seed.

A paired difference cancels what both trainings share, such as the batches of a seed. The paired t
test agrees with the t interval: p < 0.05 exactly if the 95 % interval excludes 0. For several
tests, p by Holm's method agrees in the same way with the interval at the level of `holm_levels`.
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
"""How often a test finds a true difference of the smallest detectable size."""
ALPHA = 1 - LEVEL
"""A p-value below it is significant."""
MOST_FLIPPED = 20
"""The most values for which `sign_flip_p` tries all choices of signs."""
_EQUAL = 1e-9
"""A smaller relative spread is rounding error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanDifference:
    """The mean of paired differences, with its interval and test."""

    mean: float
    pairs: int
    interval: Interval | None = None
    p: float | None = None
    """The two-sided p-value of a zero mean; None for one pair and for equal differences."""
    detectable: float | None = None
    """The true difference that the same number of new pairs detects with probability `POWER`, if
    differences are normally distributed with the spread that these pairs estimate."""
    error: float | None = None
    """The standard error of the mean; None where `p` is None."""


def mean_difference(
    first: Sequence[float],
    second: Sequence[float],
    *,
    level: float = LEVEL,
    source: Uncertainty = Uncertainty.seeds,
) -> MeanDifference:
    """Return the mean of first minus second, with its t interval and the paired t test.

    With a single pair or equal differences, no test is possible, and only the mean is returned.

    Args:
        first: the numbers of the first model, one for each pair.
        second: the numbers of the second model, in the same order.
        level: the level of the interval; 1 - level is the significance level for `detectable`.
        source: what differs between pairs, for example seeds.
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
        detectable=_detectable_errors(degrees, level) * error,
        error=error,
    )


@cache
def _detectable_errors(degrees: int, level: float) -> float:
    """Return the true mean, in estimated standard errors, that `POWER` of new tests detect.

    The new pairs have the same true spread, but another estimate of it. Ignoring that difference
    would give three pairs a power of 63 % instead of 80 %. `s` are equally likely values of an
    estimated spread divided by the true one; those of old pairs (rows) and new pairs (columns) are
    independent. The mean is found by bisection on a logarithmic scale.
    """
    points = (np.arange(100) + 0.5) / 100
    s = np.sqrt(special.chdtri(degrees, 1 - points) / degrees)
    limit = t_quantile(0.5 + level / 2, degrees)
    low, high = limit, 1000 * limit
    while high > 1.0001 * low:
        middle = math.sqrt(low * high)
        mean, critical = middle * s[:, None], limit * s
        power = float((special.ndtr(mean - critical) + special.ndtr(-mean - critical)).mean())
        low, high = (middle, high) if power < POWER else (low, middle)
    return low


def sign_flip_p(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of the mean of differences, by the sign-flip test.

    It is the fraction of all 2^n choices of signs that give a mean at least as far from 0. The test
    is exact for symmetric distributions. Above `MOST_FLIPPED` values, a normal limit replaces it.
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
    """Return Newcombe's interval for the difference of two accuracies.

    It treats the two as independent (method 10 of doi:10.1002/(SICI)1097-0258(19980430)17:8<873),
    so it is too wide if both models answer the same examples correctly.

    `first` and `second` are the accuracy and the number of examples of each model.
    """
    a, b = wilson_interval(*first), wilson_interval(*second)
    (first_share, _), (second_share, _) = first, second
    difference = first_share - second_share
    low = difference - math.hypot(first_share - a.low, b.high - second_share)
    high = difference + math.hypot(a.high - first_share, second_share - b.low)
    return Interval(low, high, Uncertainty.examples, LEVEL)


def holm(p: Sequence[float]) -> list[float]:
    """Return the p-values corrected by Holm's method, in the same order.

    The k-th smallest of n p-values (k from 0) becomes (n - k) p, at most 1, and at least the
    corrected value of the next smaller one.
    """
    order = sorted(range(len(p)), key=lambda index: p[index])
    corrected, previous = [0.0] * len(p), 0.0
    for rank, index in enumerate(order):
        previous = max(previous, min(1.0, (len(p) - rank) * p[index]))
        corrected[index] = previous
    return corrected


def holm_levels(p: Sequence[float]) -> list[float]:
    """Return the level at which Holm's method tests each p-value, in the same order.

    It is 1 - `ALPHA` / m. For a significant test, m is the number of tests that remain at its step;
    for the others, m is the number that remain when the method stops. An interval of this level
    excludes 0 exactly if the corrected p is below `ALPHA`. The coverage of each interval is at
    least `LEVEL`, but that of all intervals together may be lower.
    """
    rejected = sum(value < ALPHA for value in holm(p))
    levels = [LEVEL] * len(p)
    for rank, index in enumerate(sorted(range(len(p)), key=lambda index: p[index])):
        levels[index] = 1 - ALPHA / (len(p) - min(rank, rejected))
    return levels
