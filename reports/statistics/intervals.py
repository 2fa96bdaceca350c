"""Confidence intervals, which name the source of their uncertainty.

They are exact if that is possible, and otherwise from a bootstrap with a fixed seed, so that the
same rows always give the same digits.
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
    """The variation that an interval accounts for; it excludes all other variation."""

    timing_noise = "timing noise"
    """Variation between timed passes in one process."""
    load = "timing noise and load"
    """Timing noise, and the difference of two clocks while other processes run."""
    residuals = "residuals"
    """Distances of points from a fitted line."""
    seeds = "seeds"
    """Variation between trainings with different seeds."""
    examples = "examples"
    """Variation between sets of evaluation examples."""
    seeds_and_examples = "seeds and examples"
    """Variation between trainings with different seeds and between sets of test examples."""
    studies = "studies"
    """Variation between searches with different trials and seeds."""
    trials = "trials"
    """Variation between draws of the options of trials."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A two-sided interval; an end is 0 or infinite if the data leave that side open."""

    low: float
    high: float
    source: Uncertainty
    level: float = LEVEL


def t_quantile(probability: float, degrees: float) -> float:
    """Return the quantile of Student's t distribution.

    Raises:
        ValueError: `probability` is outside (0, 1), or `degrees` (of freedom) is not positive.
    """
    if not 0.0 < probability < 1.0 or degrees <= 0:
        raise ValueError(
            f"a quantile of Student's t needs 0 < probability < 1 and degrees > 0: got "
            f"probability={probability} and degrees={degrees}"
        )
    return float(special.stdtrit(degrees, probability))


def mean_interval(
    values: Sequence[float], source: Uncertainty = Uncertainty.seeds, level: float = LEVEL
) -> Interval | None:
    """Return the t interval of the mean, mean ± t s / sqrt(n); None for fewer than two values."""
    x = np.asarray(values, dtype=np.float64)
    if x.size < 2:
        return None
    half = t_quantile(0.5 + level / 2, x.size - 1) * float(x.std(ddof=1)) / math.sqrt(x.size)
    return Interval(float(x.mean()) - half, float(x.mean()) + half, source, level)


def bootstrap_interval(
    values: Sequence[float], source: Uncertainty = Uncertainty.examples
) -> Interval | None:
    """Return the bootstrap interval of a mean, between percentiles; None below two values.

    It resamples the values with a fixed seed; for a difference, pass the paired differences.
    """
    x = np.asarray(values, dtype=np.float64)
    if x.size < 2:
        return None
    rng = np.random.default_rng(SEED)
    step = max(1, 1_000_000 // x.size)  # resamples at once, which bounds the memory
    sizes = [min(step, RESAMPLES - start) for start in range(0, RESAMPLES, step)]
    means = np.concatenate([x[rng.integers(0, x.size, (n, x.size))].mean(1) for n in sizes])
    low, high = np.quantile(means, [LOWER, UPPER])
    return Interval(float(low), float(high), source)


def wilson_interval(share: float, count: int) -> Interval:
    """Return Wilson's interval for an accuracy `share` on `count` independent examples.

    Raises:
        ValueError: there is no example, or the share is outside [0, 1].
    """
    if count < 1 or not 0.0 <= share <= 1.0:
        raise ValueError(
            "Wilson's interval needs an accuracy from 0 to 1 on at least 1 example: got "
            f"{share} on {count} examples"
        )
    correct = round(share * count)
    z = float(special.ndtri(UPPER))
    centre = correct + z * z / 2
    half = z * math.sqrt(correct * (count - correct) / count + z * z / 4)
    low = 0.0 if correct == 0 else (centre - half) / (count + z * z)
    high = 1.0 if correct == count else (centre + half) / (count + z * z)
    return Interval(low, high, Uncertainty.examples)


def exact_interval(right: int, count: int) -> Interval:
    """Return Clopper and Pearson's interval for a proportion: `right` of `count` independent draws.

    Its coverage is at least `LEVEL` for every proportion, while Wilson's is `LEVEL` on average.
    """
    low = float(special.betaincinv(right, count - right + 1, LOWER)) if right else 0.0
    high = float(special.betaincinv(right + 1, count - right, UPPER)) if right < count else 1.0
    return Interval(low, high, Uncertainty.trials)


def percentiles(samples: ArrayLike) -> tuple[float, float]:
    """Return the 20th and the 80th percentile, which show the spread of samples in figures."""
    a, b = np.percentile(np.asarray(samples, dtype=np.float64), [20, 80])
    return float(a), float(b)


@cache
def _samples_outside(size: int) -> int:
    """Return how many of `size` samples are outside the interval of the median on each side.

    The number of samples below the median is binomial, with probability 1/2.
    """
    outside = np.searchsorted(special.bdtr(np.arange(size), size, 0.5), LOWER)
    return max(0, int(outside) - 1)


def median_interval(samples: ArrayLike) -> Interval | None:
    """Return the interval of a median between two order statistics; None below two samples.

    Its coverage is at least `LEVEL` for independent samples of any distribution. With fewer than
    six samples, the interval is their range, and its `level` is lower. For a ratio, pass the paired
    ratios as samples.
    """
    x = np.sort(np.asarray(samples, dtype=np.float64).ravel())
    if x.size < 2:
        return None
    outside = _samples_outside(x.size)
    level = min(LEVEL, 1.0 - 2.0 ** (1 - x.size))
    return Interval(float(x[outside]), float(x[-1 - outside]), Uncertainty.timing_noise, level)


ONE_LENGTH, LENGTHS = 1.0, 0.5
"""Values of `beyond`: for the factor at one length, and for an exponent or crossover over several
lengths, where a load shifts all lengths alike and so matters less."""


def beyond_both(
    values: tuple[float, float], intervals: tuple[Interval | None, Interval | None], beyond: float
) -> Interval | None:
    """Return the interval of a number that two clocks measured while other processes ran.

    It contains both intervals, and on each side a margin of `beyond` times the difference of the
    two values, because a quiet machine's value lies between them or near them. If an interval is
    None, return the other one.
    """
    first, second = intervals
    if first is None or second is None:
        return first or second
    first_value, second_value = values
    margin = beyond * abs(first_value - second_value)
    margin = margin if math.isfinite(margin) else 0.0  # a crossover that is never reached
    low, high = min(first.low, second.low) - margin, max(first.high, second.high) + margin
    return Interval(low, high, Uncertainty.load, min(first.level, second.level))


def beyond_both_ratios(
    values: tuple[float, float], intervals: tuple[Interval | None, Interval | None], beyond: float
) -> Interval | None:
    """Return `beyond_both` on a logarithmic scale, for values from 0 to infinity."""
    first, second = (i and replace(i, low=_log(i.low), high=_log(i.high)) for i in intervals)
    first_value, second_value = map(_log, values)
    logs = beyond_both((first_value, second_value), (first, second), beyond)
    return logs and replace(logs, low=math.exp(logs.low), high=math.exp(logs.high))


def _log(value: float) -> float:
    """Return the natural logarithm; minus infinity for 0."""
    return math.log(value) if value > 0 else -math.inf


def enough(samples: Sequence[ArrayLike] | None) -> bool:
    """Return whether every length has at least two samples; `samples` are those of each length."""
    return samples is not None and all(np.size(np.asarray(s)) >= 2 for s in samples)


def resample(samples: Sequence[ArrayLike], statistic: Callable[[Array], Array]) -> Interval:
    """Return a bootstrap interval of a statistic: medians (resamples, lengths) → (resamples).

    The samples of each length are resampled separately.
    """
    rng = np.random.default_rng(SEED)
    with np.errstate(invalid="ignore"):  # a crossover may be infinite
        values = statistic(np.stack([_resampled_medians(s, rng) for s in samples], axis=-1))
    # "lower" and "higher" choose existing values, because infinite ones cannot be interpolated
    low = np.quantile(values, LOWER, method="lower")
    high = np.quantile(values, UPPER, method="higher")
    return Interval(float(low), float(high), Uncertainty.timing_noise)


def _resampled_medians(samples: ArrayLike, rng: np.random.Generator) -> Array:
    """Return `RESAMPLES` medians of bootstrap resamples, without drawing the resamples.

    A resample takes uniformly random positions of the sorted samples. The median position is an
    order statistic of uniform numbers, so it has a beta distribution and is drawn directly.
    """
    x = np.sort(np.asarray(samples, dtype=np.float64).ravel())
    size, rank = x.size, (x.size + 1) // 2
    lower = rng.beta(rank, size + 1 - rank, RESAMPLES)
    medians: Array = x[(size * lower).astype(int)]
    if size % 2 == 0:  # the median is the mean of the two values in the middle
        upper = lower + (1 - lower) * rng.beta(1, size - rank, RESAMPLES)
        medians = (medians + x[np.minimum(size * upper, size - 1).astype(int)]) / 2
    return medians
