"""Tuning curves: the best of k trials against k, with a band that holds for all k at once.

    F       distribution of the score of one trial, whose options are drawn
    τ(k)    median of the best of k trials, F⁻¹(0.5^(1/k))

The curve takes the trials' empirical distribution for F. The band is that of opda (Lourie et al.
2024, arXiv:2311.09480): exact for independent draws, whatever F is. Curve and band depend on the
ranks of scores alone, so one band serves all families of a search.
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
    "The curves have no bands, since opda is not installed: pip install 'lra[search]' brings it."
)
STUDIES = 3
"""From so many on there is an interval over studies."""
BAND_TRIALS = 32
"""From so many on bands of models that differ greatly are mostly apart, in simulated searches."""


class TuningCurve(NamedTuple):
    """The best of k trials, for k = 1 … n; arrays [n]."""

    best: Array
    low: Array
    """NaN where there is no band."""
    high: Array


def bounds(metric: str) -> tuple[float, float]:
    """Return the worst and the best score that a metric can have, as it is."""
    about = METRICS[metric]
    most = 1.0 if about.unit == "fraction" else np.inf
    least = 0.0 if about.unit in {"nat", "bit"} else about.least
    return (least, most) if higher_is_better(metric) else (most, least)


def higher_is_better(metric: str) -> bool:
    """Return whether more of a metric is better."""
    return METRICS[metric].higher_is_better is not False


def tuning_curve(scores: Sequence[float], metric: str) -> TuningCurve:
    """Return the median of the best of k independent trials, with its band where opda is installed.

    Args:
        scores: of trials, in any order; NaN of one that failed, which is the worst there can be.
        metric: whose scores these are.
    """
    worst, best = bounds(metric)
    given = np.asarray(scores, dtype=np.float64)
    given = np.sort(np.where(np.isnan(given), worst, given))
    ordered = given if higher_is_better(metric) else given[::-1]
    by_rank = np.concatenate([[worst], ordered, [best]])
    k = np.arange(1, len(given) + 1)
    middle = np.ceil(len(given) * 0.5 ** (1 / k) - 1e-9).astype(int)
    ranks = _band(len(given))
    if ranks is None:
        nothing = np.full(len(given), np.nan)
        return TuningCurve(by_rank[middle], nothing, nothing)
    worse, better = (by_rank[rank] for rank in ranks)
    low, high = (worse, better) if higher_is_better(metric) else (better, worse)
    return TuningCurve(by_rank[middle], low, high)


@cache
def _band(count: int) -> tuple[Ranks, Ranks] | None:
    """Return the ranks between which the median of the best of k lies, for k = 1 … `count`.

    0 is the worst score there can be, `count` + 1 the best. None where opda is not installed.
    """
    if find_spec("opda") is None:
        return None
    if count == 1:  # which bounds nothing, and opda refuses
        return np.zeros(1, int), np.full(1, 2)
    from opda.nonparametric import EmpiricalDistribution  # takes most of a second

    # highest density: as exact, and four times as long
    lower, _, upper = EmpiricalDistribution.confidence_bands(
        np.arange(1.0, count + 1), LEVEL, 0.0, count + 1.0, method="ld_equal_tailed",
        generator=np.random.default_rng(SEED), n_jobs=1,
    )  # fmt: skip
    k = np.arange(1, count + 1)
    # a distribution function from below is a curve from above
    low, high = upper.quantile_tuning_curve(k), lower.quantile_tuning_curve(k)
    return low.astype(int), high.astype(int)


def running_best(studies: Sequence[Sequence[float]], metric: str) -> TuningCurve:
    """Return the mean over studies of the best of the first k trials, with its t interval.

    For trials that are no independent draws. There is an interval from `STUDIES` studies on.

    Args:
        studies: of each, the scores of its trials in their order; NaN of one that failed.
        metric: whose scores these are.
    """
    worst, _ = bounds(metric)
    follow = np.maximum if higher_is_better(metric) else np.minimum
    count = min(map(len, studies))
    lines = [np.nan_to_num(np.asarray(s, dtype=np.float64)[:count], nan=worst) for s in studies]
    best = np.stack([follow.accumulate(line) for line in lines])
    ends = [
        mean_interval([float(value) for value in column], Uncertainty.studies)
        if len(studies) >= STUDIES and np.isfinite(column).all()
        else None
        for column in best.T
    ]
    low, high = (
        np.array([np.nan if end is None else getattr(end, side) for end in ends])
        for side in ("low", "high")
    )
    return TuningCurve(best.mean(axis=0), low, high)


def expected_best(scores: Sequence[float], metric: str) -> Array:
    """Return the mean of the best of k of the trials without replacement, for k = 1 … n.

    It is unbiased for independent draws (Dodge et al. 2019, arXiv:1909.03004, with replacement).
    NaN where opda is not installed, and where a trial failed that has no worst score.
    """
    worst, _ = bounds(metric)
    given = np.nan_to_num(np.asarray(scores, dtype=np.float64), nan=worst)
    if find_spec("opda") is None or not np.isfinite(given).all():
        return np.full(len(given), np.nan)
    from opda.nonparametric import EmpiricalDistribution

    k = np.arange(1, len(given) + 1)
    means: Array = EmpiricalDistribution(given).u_tuning_curve(
        k, minimize=not higher_is_better(metric)
    )
    return means


def ahead(first: TuningCurve, second: TuningCurve, metric: str) -> NDArray[np.bool_]:
    """Return where the band of the first lies beyond that of the second; they are as long.

    At numbers of trials near all that there are, no band bounds the best from above.
    """
    if higher_is_better(metric):
        return first.low > second.high
    return first.high < second.low


def agreement(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Kendall's τ of two scores of the same trials; NaN where one has no spread."""
    from scipy.stats import kendalltau  # scipy.stats takes a second to import

    return float(kendalltau(first, second).statistic)
