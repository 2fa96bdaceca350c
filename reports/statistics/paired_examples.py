"""Differences of two models on the same test examples: McNemar's test, and seeds with examples.

With S seeds and N examples, the difference of seed s at example e is modelled as

    d[s, e] = mean + seed[s] + example[e] + rest[s, e]

An interval over seeds holds for other trainings and this test set. An interval over seeds and
examples also holds for other test sets: example[e] varies, too, and is equal for all seeds.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import special

from lra.reports.statistics.intervals import LEVEL, Interval, Uncertainty, t_quantile
from lra.reports.statistics.paired_tests import MeanDifference


def mcnemar_p(only_first: int, only_second: int) -> float:
    """Return the two-sided p-value of McNemar's exact test.

    Args:
        only_first: the number of examples that only the first model answers correctly.
        only_second: the number that only the second model answers correctly.
    """
    smaller, both = min(only_first, only_second), only_first + only_second
    return min(1.0, 2 * float(special.bdtr(smaller, both, 0.5)))


def example_variance(gains: NDArray[np.float64]) -> float:
    """Return the variance of the mean difference that comes from examples: var(example) / N.

    It is estimated from mean squares, because the variance of means over seeds includes 1/S of the
    variance of `rest`. Noise may make it negative; the result is then 0.

    Args:
        gains: first minus second result, array [seeds, examples], at least 2 by 2. All rows have
            the same examples in one order.
    """
    seeds, examples = gains.shape
    of_examples = gains.mean(axis=0)
    rest = gains - of_examples - gains.mean(axis=1, keepdims=True) + gains.mean()
    rest_variance = float((rest**2).sum()) / ((seeds - 1) * (examples - 1))
    of_means = float(of_examples.var(ddof=1))
    variance: float = (of_means - rest_variance / seeds) / examples
    return max(0.0, variance)


def over_seeds_and_examples(
    difference: MeanDifference, variances: Sequence[float], level: float = LEVEL
) -> Interval | None:
    """Return the interval of a mean difference over seeds and examples; None without a t interval.

    The squares of two half widths are added: that of the t interval over seeds, and that of a
    normal interval for the part of examples. Percentiles of a bootstrap over seeds and examples
    would be too narrow for few seeds: with 3 seeds, they cover about 75 % instead of 95 %. This
    interval covers 95 to 98 % with 3 seeds, and up to 99 % with 2.

    Args:
        difference: the mean difference over seeds.
        variances: `example_variance` of each task; the mean is over tasks with equal weights.
        level: the level of the interval.
    """
    if difference.error is None:
        return None
    of_seeds = t_quantile(0.5 + level / 2, difference.pairs - 1) * difference.error
    of_examples = float(special.ndtri(0.5 + level / 2)) * math.sqrt(sum(variances))
    half = math.hypot(of_seeds, of_examples / len(variances))
    return Interval(
        difference.mean - half, difference.mean + half, Uncertainty.seeds_and_examples, level
    )
