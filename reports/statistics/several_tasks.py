"""Statistics of scores over several tasks and seeds.

    interquartile mean            the mean of the middle half of all scores of a model
    probability of improvement    P(X > Y) + P(X = Y) / 2 for a random seed of each of two models,
                                  as a mean over tasks

A failed training counts as a score of minus infinity, so it is worse than every other one.

Sources: Agarwal et al. 2021, arXiv:2108.13264 (the statistics, and a bootstrap that resamples the
seeds of each task separately); Newcombe 2006, doi:10.1002/sim.2324 (the interval of a probability
of improvement, his method 5).
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lra.reports.statistics.intervals import (
    LEVEL,
    SEED,
    Interval,
    Uncertainty,
    t_quantile,
)

RESAMPLES = 500
"""Resamples of each task; they give a standard error, which needs fewer than percentiles."""
Tasks = Sequence[ArrayLike]
"""The scores of a model: for each task, those of its seeds."""


def interquartile_mean(scores: ArrayLike) -> NDArray[np.float64]:
    """Return the mean without the lowest and the highest quarter (rounded down) of the last axis.

    Args:
        scores: all scores of a model, array [..., tasks times seeds].
    """
    ordered = np.sort(np.asarray(scores, dtype=np.float64), axis=-1)
    cut = ordered.shape[-1] // 4
    return np.asarray(ordered[..., cut : ordered.shape[-1] - cut].mean(axis=-1))


def interquartile_interval(scores: Tasks) -> Interval | None:
    """Return the interval of the interquartile mean over seeds, from a stratified bootstrap.

    It is a t interval. The variance is the sum of those of bootstraps of each task, times
    n / (n - 1) for n seeds, and Satterthwaite's degrees of freedom follow from its parts.
    Percentiles of a bootstrap would be too narrow: with 3 seeds of a task, they cover about 75 %.

    Returns:
        The interval; None if a task has fewer than two seeds, or the mean is infinite.
    """
    tasks = [np.asarray(task, dtype=np.float64) for task in scores]
    sizes = np.array([task.size for task in tasks])
    pooled = np.concatenate(tasks)
    mean = float(interquartile_mean(pooled))
    if sizes.min() < 2 or not math.isfinite(mean):
        return None
    rng, ends = np.random.default_rng(SEED), np.cumsum(sizes)
    variances = np.zeros(len(tasks))
    for index, (task, end) in enumerate(zip(tasks, ends, strict=True)):
        samples = np.repeat(pooled[None], RESAMPLES, axis=0)
        drawn = rng.integers(0, task.size, (RESAMPLES, task.size))
        samples[:, end - task.size : end] = task[drawn]
        means = interquartile_mean(samples)
        variances[index] = means[np.isfinite(means)].var()
    variances *= sizes / (sizes - 1)
    total = float(variances.sum())
    if total == 0.0:
        return Interval(mean, mean, Uncertainty.seeds)
    degrees = total**2 / float((variances**2 / (sizes - 1)).sum())
    half = t_quantile(0.5 + LEVEL / 2, degrees) * math.sqrt(total)
    return Interval(mean - half, mean + half, Uncertainty.seeds)


def improvement(first: Tasks, second: Tasks) -> tuple[float, Interval]:
    """Return the probability of improvement of the first model over the second, and its interval.

    The interval inverts a score test, whose variance is that of equal probabilities in all tasks;
    for unequal ones, it is smaller.
    """
    values, weight, seeds = [], 0.0, 0
    for x, y in zip(map(np.asarray, first), map(np.asarray, second), strict=True):
        signs = (x[:, None] > y).astype(int) - (x[:, None] < y)
        values.append((float(signs.mean()) + 1) / 2)
        weight, seeds = weight + 1 / (x.size * y.size), seeds + x.size + y.size
    tasks, mean = len(values), math.fsum(values) / len(values)
    pairs = tasks**2 / weight  # of seeds, as if all tasks were one
    extra = seeds / (2 * tasks) - 1
    critical = t_quantile(0.5 + LEVEL / 2, max(1, seeds - 2 * tasks))
    low, high = (_score_limit(value, pairs, extra, critical) for value in (mean, 1 - mean))
    return mean, Interval(low, 1 - high, Uncertainty.seeds)


def _score_limit(value: float, pairs: float, extra: float, critical: float) -> float:
    """Return the smallest probability of improvement p that is not rejected for an estimate.

    p is rejected if value - p is more than `critical` standard deviations of the estimate at p.

    Args:
        value: the estimate.
        pairs: the number of pairs of seeds.
        extra: the mean number of seeds of a model at a task, minus 1.
        critical: the quantile of the test.
    """
    low, high = 0.0, value
    for _ in range(50):  # bisection
        p = (low + high) / 2
        variance = p * (1 - p) * (1 + extra * ((1 - p) / (2 - p) + p / (1 + p))) / pairs
        low, high = (p, high) if value - p > critical * math.sqrt(variance) else (low, p)
    return high
