"""Tuning curves: the best score of k trials against k, with a band for all k at once.

    F       distribution function of the score of one trial with random options
    τ(k)    median of the best of k trials, F⁻¹(0.5^(1/k))

The curve uses the empirical distribution of the trials for F. The band is that of opda (Lourie et
al. 2024, arXiv:2311.09480), which is exact for independent draws from any F. Curve and band depend
only on the ranks of scores, so a band is computed once for all families of a search.
"""

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lra.reports.statistics.intervals import LEVEL, SEED, Uncertainty, mean_interval
from lra.runners.metrics import METRICS

Array = NDArray[np.float64]
Ranks = NDArray[np.int64]
ABSENT = (
    "The curves have no bands, because the package opda is missing; pip install 'lra[search]' "
    "installs it."
)
STUDIES = 3
"""The fewest studies for an interval over studies."""
BAND_TRIALS = 32
"""In simulated searches with at least this many trials, bands of very different models rarely
overlap."""


class TuningCurve(NamedTuple):
    """The best score of k trials, for k = 1 … n, with the ends of its band; arrays (n)."""

    best: Array
    low: Array
    """NaN if there is no band, as in `high`."""
    high: Array


def bounds(metric: str) -> tuple[float, float]:
    """Return the worst and the best possible score of a metric, as stored."""
    description = METRICS[metric]
    most = 1.0 if description.unit == "fraction" else np.inf
    least = 0.0 if description.unit in {"nat", "bit"} else description.least
    return (least, most) if higher_is_better(metric) else (most, least)


def higher_is_better(metric: str) -> bool:
    """Return whether higher values of a metric are better."""
    return METRICS[metric].higher_is_better is not False


def tuning_curve(scores: Sequence[float], metric: str) -> TuningCurve:
    """Return the median of the best of k independent trials; with its band if opda is installed.

    Args:
        scores: the scores of trials in any order. NaN is a failed trial, which counts as the worst
            possible score.
        metric: the metric of the scores.
    """
    worst, best = bounds(metric)
    values = np.asarray(scores, dtype=np.float64)
    values = np.sort(np.where(np.isnan(values), worst, values))
    count = len(values)
    from_worst = values if higher_is_better(metric) else values[::-1]
    by_rank = np.concatenate([[worst], from_worst, [best]])
    k = np.arange(1, count + 1)
    # F⁻¹(0.5^(1/k)) of the empirical distribution; 1e-9 is for rounding
    median_rank = np.ceil(count * 0.5 ** (1 / k) - 1e-9).astype(int)
    ranks = _band_ranks(count)
    if ranks is None:
        no_band = np.full(count, np.nan)
        return TuningCurve(by_rank[median_rank], no_band, no_band)
    worse, better = (by_rank[rank] for rank in ranks)
    low, high = (worse, better) if higher_is_better(metric) else (better, worse)
    return TuningCurve(by_rank[median_rank], low, high)


@cache
def _band_ranks(count: int) -> tuple[Ranks, Ranks] | None:
    """Return the ranks between which the median of the best of k lies, for k = 1 … `count`.

    Rank 0 is the worst possible score, and `count` + 1 the best possible one. Return None if opda
    is not installed.
    """
    if find_spec("opda") is None:
        return None
    if count == 1:  # opda refuses a single trial, whose band is unbounded
        return np.zeros(1, int), np.full(1, 2)
    from opda.nonparametric import EmpiricalDistribution  # this import takes most of a second

    # "ld_highest_density" would be as exact, but takes four times as long
    lower, _, upper = EmpiricalDistribution.confidence_bands(
        np.arange(1.0, count + 1), LEVEL, 0.0, count + 1.0, method="ld_equal_tailed",
        generator=np.random.default_rng(SEED), n_jobs=1,
    )  # fmt: skip
    k = np.arange(1, count + 1)
    # a lower bound of the distribution function is an upper bound of the scores
    low, high = upper.quantile_tuning_curve(k), lower.quantile_tuning_curve(k)
    return low.astype(int), high.astype(int)


def running_best(studies: Sequence[Sequence[float]], metric: str) -> TuningCurve:
    """Return the mean over studies of the best of the first k trials, with its t interval.

    It is for trials that depend on each other. With fewer than `STUDIES` studies, the ends of the
    interval are NaN.

    Args:
        studies: the scores of the trials of each study, in order. NaN is a failed trial.
        metric: the metric of the scores.
    """
    worst, _ = bounds(metric)
    better_of = np.maximum if higher_is_better(metric) else np.minimum
    count = min(map(len, studies))
    lines = [np.nan_to_num(np.asarray(s, dtype=np.float64)[:count], nan=worst) for s in studies]
    best = np.stack([better_of.accumulate(line) for line in lines])  # (studies, trials)
    intervals = [
        mean_interval([float(value) for value in column], Uncertainty.studies)
        if len(studies) >= STUDIES and np.isfinite(column).all()
        else None
        for column in best.T
    ]
    low = np.array([np.nan if i is None else i.low for i in intervals])
    high = np.array([np.nan if i is None else i.high for i in intervals])
    return TuningCurve(best.mean(axis=0), low, high)


def expected_best(scores: Sequence[float], metric: str) -> Array:
    """Return the mean of the best of k trials, drawn from these without replacement, k = 1 … n.

    It is unbiased for independent draws (Dodge et al. 2019, arXiv:1909.03004, with replacement).
    All numbers are NaN if opda is not installed, or if a trial failed and the metric has no worst
    score.
    """
    worst, _ = bounds(metric)
    values = np.nan_to_num(np.asarray(scores, dtype=np.float64), nan=worst)
    if find_spec("opda") is None or not np.isfinite(values).all():
        return np.full(len(values), np.nan)
    from opda.nonparametric import EmpiricalDistribution

    k = np.arange(1, len(values) + 1)
    means: Array = EmpiricalDistribution(values).u_tuning_curve(
        k, minimize=not higher_is_better(metric)
    )
    return means


def ahead(first: TuningCurve, second: TuningCurve, metric: str) -> NDArray[np.bool_]:
    """Return for each k whether the first curve's band is better than all of the second's.

    For k near the number of trials, bands are unbounded on the better side.
    """
    if higher_is_better(metric):
        return first.low > second.high
    return first.high < second.low


def agreement(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Kendall's τ of two lists of scores of the same trials; NaN if one is constant."""
    from scipy.stats import kendalltau  # this import takes a second

    return float(kendalltau(first, second).statistic)
