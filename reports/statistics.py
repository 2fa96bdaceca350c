"""Intervals. Every one says where its uncertainty comes from.

Exact where that is possible; otherwise a bootstrap with a fixed seed, so that the same rows give
the same digits.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEVEL = 0.95
RESAMPLES = 2000
SEED = 20

Array = NDArray[np.float64]


class Uncertainty(StrEnum):
    """What an interval accounts for, and hence what it leaves out."""

    timing_noise = "timing noise"
    """Repeated timed passes in one process."""
    residuals = "residuals"
    """Distance of the points from a fitted line."""
    seeds = "seeds"
    """Training again with another seed."""
    examples = "examples"
    """Drawing another evaluation set."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A two-sided interval; bounds may be 0 or infinite where the data leave one side open."""

    low: float
    high: float
    source: Uncertainty
    level: float = LEVEL


# ------------------------------------------------------------------------- distributions


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function, by Lentz's continued fraction."""
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly, its mirror is fast
        return 1.0 - _incomplete_beta(b, a, 1 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(log_front + a * math.log(x) + b * math.log1p(-x)) / a
    tiny = 1e-300
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1)
    d = 1.0 / (d if abs(d) > tiny else tiny)
    result = d
    for m in range(1, 500):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for numerator in (even, odd):
            d = 1.0 + numerator * d
            d = 1.0 / (d if abs(d) > tiny else tiny)
            c = 1.0 + numerator / c
            c = c if abs(c) > tiny else tiny
            result *= c * d
        if abs(c * d - 1.0) < 1e-16:
            break
    return front * result


def t_quantile(probability: float, degrees: float) -> float:
    """Return the quantile of Student's t, exact to about 1e-12.

    Raises:
        ValueError: `probability` outside (0, 1) or `degrees` not positive.
    """
    if not 0.0 < probability < 1.0 or degrees <= 0:
        raise ValueError(
            f"a t quantile needs 0 < probability < 1 and degrees > 0: got {probability}, {degrees}"
        )
    if probability == 0.5:
        return 0.0
    tail = min(probability, 1.0 - probability)

    def upper_tail(t: float) -> float:
        return 0.5 * _incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t))

    high = 1.0
    while upper_tail(high) > tail:
        high *= 2.0
    low = 0.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        low, high = (middle, high) if upper_tail(middle) > tail else (low, middle)
    return math.copysign(0.5 * (low + high), probability - 0.5)


# ----------------------------------------------------------------------------- intervals


def mean_interval(
    values: Sequence[float], source: Uncertainty = Uncertainty.seeds, level: float = LEVEL
) -> Interval | None:
    """Return the t interval of a mean, or None for fewer than two values."""
    x = np.asarray(values, dtype=np.float64)
    if x.size < 2:
        return None
    half = t_quantile(0.5 + level / 2, x.size - 1) * float(x.std(ddof=1)) / math.sqrt(x.size)
    return Interval(float(x.mean()) - half, float(x.mean()) + half, source, level)


def wilson_interval(share: float, count: int, level: float = LEVEL) -> Interval:
    """Return Wilson's interval of a share of `count` independent examples.

    Raises:
        ValueError: no examples, or a share outside [0, 1].
    """
    if count < 1 or not 0.0 <= share <= 1.0:
        raise ValueError(
            f"Wilson's interval needs a share in [0, 1] of >= 1 example: got {share} of {count}"
        )
    z = NormalDist().inv_cdf(0.5 + level / 2)
    scale = 1 + z * z / count
    centre = (share + z * z / (2 * count)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    low = 0.0 if share == 0.0 else max(0.0, centre - half)
    high = 1.0 if share == 1.0 else min(1.0, centre + half)
    return Interval(low, high, Uncertainty.examples, level)


def percentiles(samples: ArrayLike, low: float = 20, high: float = 80) -> tuple[float, float]:
    """Return two percentiles of the samples: their spread, not the uncertainty of their median."""
    a, b = np.percentile(np.asarray(samples, dtype=np.float64), [low, high])
    return float(a), float(b)


def _bootstrap_medians(samples: ArrayLike, rng: np.random.Generator) -> Array:
    """Return medians of resamples. Ranks are sorted in place of the values: ten times as fast."""
    x = np.asarray(samples, dtype=np.float64)
    order = np.argsort(x, kind="stable")
    ranks = np.empty(x.size, np.int32)
    ranks[order] = np.arange(x.size)
    picks = np.sort(ranks[rng.integers(0, x.size, size=(RESAMPLES, x.size))], axis=1)
    low, high = x[order][picks[:, (x.size - 1) // 2]], x[order][picks[:, x.size // 2]]
    return np.asarray((low + high) / 2, dtype=np.float64)


def _percentile_interval(
    values: Array, level: float, source: Uncertainty = Uncertainty.timing_noise
) -> Interval:
    # order statistics, not interpolation: a resample may be infinite (never reached)
    ordered = np.sort(values)
    low = ordered[math.floor((0.5 - level / 2) * (ordered.size - 1))]
    high = ordered[math.ceil((0.5 + level / 2) * (ordered.size - 1))]
    return Interval(float(low), float(high), source, level)


@cache
def _cut(size: int, level: float) -> tuple[int, float]:
    """Return how many values lie outside the interval on each side, and what it covers."""

    def coverage(cut: int) -> float:
        outside = sum(math.comb(size, i) for i in range(cut + 1))
        return 1.0 - 2 * outside / (1 << size)  # of integers: a float would end at 1,023 samples

    cut = 0
    while cut + 1 < size / 2 - 0.5 and coverage(cut + 1) >= level:
        cut += 1
    return cut, min(level, coverage(cut))


def median_interval(samples: ArrayLike, level: float = LEVEL) -> Interval | None:
    """Return the interval of a median between two order statistics, or None below two samples.

    Exact for independent samples of any distribution: it covers with at least `level`. Below six
    samples 95 % cannot be reached; the interval is then the range, and its level says what it has.
    For a ratio, give the paired ratios as samples.
    """
    x = np.sort(np.asarray(samples, dtype=np.float64).ravel())
    if x.size < 2:
        return None

    cut, reached = _cut(x.size, level)
    low, high = float(x[cut]), float(x[x.size - 1 - cut])
    return Interval(low, high, Uncertainty.timing_noise, reached)


def enough(samples: Sequence[ArrayLike] | None) -> bool:
    """Return whether every length has repeated samples."""
    return samples is not None and all(np.size(np.asarray(s)) >= 2 for s in samples)


def resampled(
    samples: Sequence[ArrayLike], statistic: Callable[[Array], Array], level: float
) -> Interval:
    """Bootstrap each length on its own, then apply `statistic` to rows of medians."""
    rng = np.random.default_rng(SEED)
    medians = np.stack([_bootstrap_medians(s, rng) for s in samples], axis=1)
    return _percentile_interval(statistic(medians), level)
