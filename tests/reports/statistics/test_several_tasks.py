"""Statistics over tasks, seeds and examples, against scipy, literal forms and simulations."""

import math

import numpy as np
import pytest
from scipy import stats

from lra.reports.statistics import several_tasks
from lra.reports.statistics.equivalence import equivalence_p, excess_p
from lra.reports.statistics.paired_examples import (
    example_variance,
    mcnemar_p,
    over_seeds_and_examples,
)
from lra.reports.statistics.paired_tests import mean_difference
from lra.reports.statistics.several_tasks import (
    improvement,
    interquartile_interval,
    interquartile_mean,
)

EXPERIMENTS = 2000
COVERS = (0.93, 0.97)


def test_mcnemar_is_the_binomial_test_of_scipy() -> None:
    for first, second in ((0, 0), (3, 12), (12, 3), (5, 5), (200, 251)):
        wanted = stats.binomtest(first, first + second).pvalue if first + second else 1.0
        assert mcnemar_p(first, second) == pytest.approx(wanted)


def test_the_variance_of_examples_is_that_of_its_definition() -> None:
    """A table of two-way analysis of variance, written with loops."""
    gains = np.random.default_rng(0).choice([-1.0, 0.0, 1.0], (3, 7)) + np.linspace(0, 4, 7)
    means = [sum(gains[s][e] for s in range(3)) / 3 for e in range(7)]
    of_seeds = [sum(gains[s]) / 7 for s in range(3)]
    mean = sum(means) / 7
    square = 3 * sum((x - mean) ** 2 for x in means) / 6
    rest = sum(
        (gains[s][e] - means[e] - of_seeds[s] + mean) ** 2 for s in range(3) for e in range(7)
    )
    assert example_variance(gains) == pytest.approx((square - rest / 12) / 21)
    assert example_variance(np.array([[1.0, -1.0], [-1.0, 1.0]])) == 0.0  # never negative


@pytest.mark.parametrize(
    ("seeds", "of_seeds", "of_examples", "most"),
    [(5, 0.3, 1.0, 0.97), (5, 0.0, 1.0, 0.97), (5, 0.3, 0.0, 0.97), (3, 0.3, 1.0, 0.985)],
)
def test_intervals_over_seeds_and_examples_cover(
    seeds: int, of_seeds: float, of_examples: float, most: float
) -> None:
    rng, inside = np.random.default_rng(seeds), 0
    for _ in range(EXPERIMENTS):
        gains = of_seeds * rng.normal(size=(seeds, 1)) + rng.normal(size=(seeds, 60))
        gains += of_examples * rng.normal(size=60)
        difference = mean_difference([*gains.mean(axis=1)], [0.0] * seeds)
        found = over_seeds_and_examples(difference, [example_variance(gains)])
        inside += found.low <= 0 <= found.high
    assert COVERS[0] < inside / EXPERIMENTS < most


def test_without_spread_there_is_no_interval_over_seeds_and_examples() -> None:
    assert over_seeds_and_examples(mean_difference([0.5], [0.4]), [0.1]) is None


def test_interquartile_means_are_those_of_scipy() -> None:
    rng = np.random.default_rng(0)
    for size in (1, 2, 3, 4, 5, 8, 30):
        scores = rng.normal(size=(2, size))
        wanted = stats.trim_mean(scores, 0.25, axis=-1)
        assert interquartile_mean(scores) == pytest.approx(wanted)
    assert interquartile_mean([-math.inf, 1.0, 2.0, 3.0]) == 1.5  # one of four failed
    assert interquartile_interval([[0.5, -math.inf, -math.inf, 0.5]]) is None
    assert interquartile_interval([[0.5, 0.6], [0.7]]) is None  # one seed only
    equal = interquartile_interval([[0.5, 0.5], [0.7, 0.7]])
    assert (equal.low, equal.high) == pytest.approx((0.6, 0.6))


@pytest.mark.parametrize(("tasks", "seeds"), [(6, 5), (1, 5), (6, 3)])
def test_intervals_of_interquartile_means_cover(
    tasks: int, seeds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(several_tasks, "RESAMPLES", 50)
    rng, centres = np.random.default_rng(tasks), np.linspace(0.4, 0.8, tasks)[:, None]
    many = (centres + 0.02 * rng.normal(size=(50_000, tasks, seeds))).reshape(50_000, -1)
    truth, inside = interquartile_mean(many).mean(), 0
    for _ in range(EXPERIMENTS):
        found = interquartile_interval([*(centres + 0.02 * rng.normal(size=(tasks, seeds)))])
        inside += found.low <= truth <= found.high
    assert 0.93 < inside / EXPERIMENTS < 0.985


def test_probabilities_of_improvement_are_mann_whitneys() -> None:
    rng = np.random.default_rng(0)
    tasks = [(rng.integers(0, 5, 6) / 5, rng.integers(0, 5, 4) / 5) for _ in range(3)]
    wanted = [stats.mannwhitneyu(x, y).statistic / (x.size * y.size) for x, y in tasks]
    found, interval = improvement(*zip(*tasks, strict=True))
    assert found == pytest.approx(np.mean(wanted))
    assert interval.low < found < interval.high
    value, _ = improvement([[-math.inf, 0.9]], [[-math.inf, 0.8]])  # a failure equals a failure
    assert value == pytest.approx((0.5 + 0 + 1 + 1) / 4)
    value, interval = improvement([[0.9] * 5], [[0.8] * 5])
    assert (value, interval.high) == (1.0, 1.0)
    assert 0.5 < interval.low < 0.6  # five seeds of each show little


@pytest.mark.parametrize(("tasks", "shift"), [(6, 0.0), (6, 1.0), (1, 1.0)])
def test_intervals_of_probabilities_of_improvement_cover(tasks: int, shift: float) -> None:
    """With one task, the number of values is small, so the interval covers more."""
    rng, truth = np.random.default_rng(1), stats.norm.cdf(shift / math.sqrt(2))
    draws = rng.normal(size=(EXPERIMENTS, 2, tasks, 5)) + np.array([shift, 0.0])[:, None, None]
    intervals = [improvement([*first], [*second])[1] for first, second in draws]
    inside = np.mean([i.low <= truth <= i.high for i in intervals])
    assert COVERS[0] < inside < (0.98 if tasks > 1 else 0.995)


def test_equivalence_is_two_one_sided_tests_of_scipy() -> None:
    rng = np.random.default_rng(0)
    for size in (2, 3, 6):
        x = rng.normal(0.1, 1, size)
        found = mean_difference([*x], [0.0] * size)
        below = stats.ttest_1samp(x, 0.8, alternative="less").pvalue
        above = stats.ttest_1samp(x, -0.8, alternative="greater").pvalue
        assert equivalence_p(found, 0.8) == pytest.approx(max(below, above))
        wanted = stats.ttest_1samp(x, 0.8, alternative="greater").pvalue
        assert excess_p(found, 0.8) == pytest.approx(wanted)
    assert equivalence_p(mean_difference([0.5], [0.4]), 1.0) is None  # one seed only


def test_models_that_differ_by_the_margin_are_rarely_called_equal() -> None:
    rng, margin = np.random.default_rng(3), 1.0
    equal = [
        equivalence_p(mean_difference([*x], [0.0] * 5), margin) < 0.05
        for x in rng.normal(margin, 0.3, (EXPERIMENTS, 5))
    ]
    assert 0.03 < np.mean(equal) < 0.07
    near = [
        equivalence_p(mean_difference([*x], [0.0] * 5), margin) < 0.05
        for x in rng.normal(0, 0.3, (200, 5))
    ]
    assert np.mean(near) > 0.9
