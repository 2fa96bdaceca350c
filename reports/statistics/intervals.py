"""Intervals. Every one says where its uncertainty comes from.

Exact where that is possible; otherwise a bootstrap with a fixed seed, so that the same rows give
the same digits.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special  # scipy.stats takes a second longer to import

LEVEL = 0.95
LOWER, UPPER = 0.5 - LEVEL / 2, 0.5 + LEVEL / 2
RESAMPLES = 2000
SEED = 20

Array = NDArray[np.float64]


class Uncertainty(StrEnum):
    """What an interval accounts for, and hence what it leaves out."""

    timing_noise = "timing noise"
    """Repeated timed passes in one process."""
    load = "timing noise and load"
    """The same, and what two clocks differ by while other processes run."""
    residuals = "residuals"
    """Distance of the points from a fitted line."""
    seeds = "seeds"
    """Training again with another seed."""
    examples = "examples"
    """Drawing another evaluation set."""
    studies = "studies"
    """Tuning again, with other points and seeds."""
    trials = "trials"
    """Drawing other points."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A two-sided interval; bounds may be 0 or infinite where the data leave one side open."""

    low: float
    high: float
    source: Uncertainty
    level: float = LEVEL


def t_quantile(probability: float, degrees: float) -> float:
    """Return the quantile of Student's t.

    Raises:
        ValueError: `probability` outside (0, 1) or `degrees` not positive.
    """
    if not 0.0 < probability < 1.0 or degrees <= 0:
        raise ValueError(
            f"a t quantile needs 0 < probability < 1 and degrees > 0: got {probability}, {degrees}"
        )
    return float(special.stdtrit(degrees, probability))


def mean_interval(
    values: Sequence[float], source: Uncertainty = Uncertainty.seeds, level: float = LEVEL
) -> Interval | None:
    """Return the t interval of a mean, or None for fewer than two values."""
    x = np.asarray(values, dtype=np.float64)
    if x.size < 2:
        return None
    half = t_quantile(0.5 + level / 2, x.size - 1) * float(x.std(ddof=1)) / math.sqrt(x.size)
    return Interval(float(x.mean()) - half, float(x.mean()) + half, source, level)


def wilson_interval(share: float, count: int) -> Interval:
    """Return Wilson's interval of a share of `count` independent examples, each right or wrong.

    Raises:
        ValueError: no examples, or a share outside [0, 1].
    """
    if count < 1 or not 0.0 <= share <= 1.0:
        raise ValueError(
            f"Wilson's interval needs a share in [0, 1] of >= 1 example: got {share} of {count}"
        )
    right = round(share * count)
    z = float(special.ndtri(UPPER))
    centre = right + z * z / 2
    half = z * math.sqrt(right * (count - right) / count + z * z / 4)
    low = 0.0 if right == 0 else (centre - half) / (count + z * z)
    high = 1.0 if right == count else (centre + half) / (count + z * z)
    return Interval(low, high, Uncertainty.examples)


def exact_interval(right: int, count: int) -> Interval:
    """Return Clopper and Pearson's interval of a share of `count` independent draws.

    It covers with at least `LEVEL` however small the share is, where Wilson's does so on average.
    """
    low = float(special.betaincinv(right, count - right + 1, LOWER)) if right else 0.0
    high = float(special.betaincinv(right + 1, count - right, UPPER)) if right < count else 1.0
    return Interval(low, high, Uncertainty.trials)


def percentiles(samples: ArrayLike) -> tuple[float, float]:
    """Return percentiles 20 and 80: the spread of samples, not the uncertainty of their median."""
    a, b = np.percentile(np.asarray(samples, dtype=np.float64), [20, 80])
    return float(a), float(b)


@cache
def _cut(size: int) -> int:
    """Return how many samples lie outside the interval of the median on each side."""
    outside = np.searchsorted(special.bdtr(np.arange(size), size, 0.5), LOWER)
    return max(0, int(outside) - 1)


def median_interval(samples: ArrayLike) -> Interval | None:
    """Return the interval of a median between two order statistics, or None below two samples.

    Exact for independent samples of any distribution: it covers with at least `LEVEL`. Below six
    samples that cannot be reached; the interval is then the range, and its level says what it has.
    For a ratio, give the paired ratios as samples.
    """
    x = np.sort(np.asarray(samples, dtype=np.float64).ravel())
    if x.size < 2:
        return None
    cut = _cut(x.size)
    reached = min(LEVEL, 1.0 - 2.0 ** (1 - x.size))
    return Interval(float(x[cut]), float(x[-1 - cut]), Uncertainty.timing_noise, reached)


ONE_LENGTH, LENGTHS = 1.0, 0.5
"""`beyond` of a factor, and of an exponent or crossover, as a load shifts all lengths alike."""


def beyond_both(
    values: tuple[float, float], intervals: tuple[Interval | None, Interval | None], beyond: float
) -> Interval | None:
    """Return the interval of a number that two clocks measured while other processes ran.

    It is the hull of both intervals, and on each side `beyond` times what the numbers differ by: a
    quiet machine's number lies between the clocks, or not far from them.
    """
    first, second = intervals
    if first is None or second is None:
        return first or second
    gap = beyond * abs(values[0] - values[1])
    gap = gap if math.isfinite(gap) else 0.0  # never reached by one of the clocks
    low, high = min(first.low, second.low) - gap, max(first.high, second.high) + gap
    return Interval(low, high, Uncertainty.load, min(first.level, second.level))


def beyond_both_ratios(
    values: tuple[float, float], intervals: tuple[Interval | None, Interval | None], beyond: float
) -> Interval | None:
    """Return `beyond_both` of the logarithms of numbers of at least 0, which may be infinite."""
    logs = [i and replace(i, low=_log(i.low), high=_log(i.high)) for i in intervals]
    found = beyond_both((_log(values[0]), _log(values[1])), (logs[0], logs[1]), beyond)
    return found and replace(found, low=math.exp(found.low), high=math.exp(found.high))


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def enough(samples: Sequence[ArrayLike] | None) -> bool:
    """Return whether every length has repeated samples."""
    return samples is not None and all(np.size(np.asarray(s)) >= 2 for s in samples)


def resample(samples: Sequence[ArrayLike], statistic: Callable[[Array], Array]) -> Interval:
    """Bootstrap each length separately, then apply `statistic` to rows of medians."""
    rng = np.random.default_rng(SEED)
    with np.errstate(invalid="ignore"):  # of infinite values: lengths that are never reached
        values = statistic(np.stack([_resampled_medians(s, rng) for s in samples], axis=-1))
    # order statistics, where interpolation would meet infinite values
    low = np.quantile(values, LOWER, method="lower")
    high = np.quantile(values, UPPER, method="higher")
    return Interval(float(low), float(high), Uncertainty.timing_noise)


def _resampled_medians(samples: ArrayLike, rng: np.random.Generator) -> Array:
    """Draw medians of resamples without drawing the resamples, at a cost free of their size.

    A resample picks positions of the sorted samples uniformly; order statistics of uniform numbers
    are beta distributed.
    """
    x = np.sort(np.asarray(samples, dtype=np.float64).ravel())
    size, rank = x.size, (x.size + 1) // 2
    lower = rng.beta(rank, size + 1 - rank, RESAMPLES)
    medians: Array = x[(size * lower).astype(int)]
    if size % 2 == 0:  # the mean of the two in the middle
        upper = lower + (1 - lower) * rng.beta(1, size - rank, RESAMPLES)
        medians = (medians + x[np.minimum(size * upper, size - 1).astype(int)]) / 2
    return medians
