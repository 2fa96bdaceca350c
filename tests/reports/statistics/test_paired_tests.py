"""Paired differences against scipy, published numbers, and simulations of what they promise."""

import math

import numpy as np
import pytest
from scipy import stats

from lra.reports.statistics.intervals import Uncertainty
from lra.reports.statistics.paired_tests import (
    MOST_FLIPPED,
    POWER,
    holm,
    holm_levels,
    mean_difference,
    share_difference_interval,
    sign_flip_p,
)

TRIALS = 4000


@pytest.mark.parametrize("pairs", [2, 3, 5, 12])
def test_the_paired_t_test_is_that_of_scipy(pairs: int) -> None:
    rng = np.random.default_rng(pairs)
    x, y = rng.normal(0.7, 0.1, pairs), rng.normal(0.6, 0.2, pairs)
    ours, theirs = mean_difference([*x], [*y]), stats.ttest_rel(x, y)
    assert ours.p == pytest.approx(theirs.pvalue, rel=1e-9)
    wanted = theirs.confidence_interval(0.95)
    assert [ours.interval.low, ours.interval.high] == pytest.approx([wanted.low, wanted.high])
    assert (ours.pairs, ours.interval.source) == (pairs, Uncertainty.seeds)
    assert (ours.p < 0.05) == (not ours.interval.low <= 0 <= ours.interval.high)


@pytest.mark.parametrize("level", [0.95, 1 - 0.05 / 3])
@pytest.mark.parametrize("pairs", [2, 3, 5, 10])
def test_the_detectable_difference_is_detected_as_often_as_promised(
    pairs: int, level: float
) -> None:
    """Of trials whose spread is estimated, others of that size are detected; most where it is said.

    It is said where no difference is shown.
    """
    rng = np.random.default_rng(pairs)
    first, second = rng.normal(0, 1, (2, 5 * TRIALS, pairs))
    of_one = mean_difference([*first[0]], [0.0] * pairs, level=level).detectable
    assert of_one is not None
    sizes = of_one / first[0].std(ddof=1) * first.std(axis=1, ddof=1)
    detected = stats.ttest_1samp(second + sizes[:, None], 0, axis=1).pvalue < 1 - level
    assert detected.mean() == pytest.approx(POWER, abs=4 * math.sqrt(0.032 / TRIALS))
    said = stats.ttest_1samp(first, 0, axis=1).pvalue >= 1 - level
    assert POWER - 0.012 < detected[said].mean() < POWER + 0.05


@pytest.mark.parametrize(
    ("first", "second"),
    [([0.4], [0.3]), ([1.0, 1.0], [1.0, 1.0]), ([0.3, 0.4, 0.7], [0.2, 0.3, 0.6])],
)
def test_without_spread_there_is_no_test(first: list[float], second: list[float]) -> None:
    """0.3 - 0.2 and 0.4 - 0.3 differ by rounding, which must not look like certainty."""
    found = mean_difference(first, second)
    assert (found.interval, found.p, found.detectable) == (None, None, None)
    assert found.mean == pytest.approx(first[0] - second[0])


def test_sign_flips_are_those_of_scipy() -> None:
    rng = np.random.default_rng(3)
    for size in (2, 5, 8):
        values = rng.normal(0.5, 1, size)
        wanted = stats.permutation_test(
            (values,), lambda x, axis: x.mean(axis), permutation_type="samples", n_resamples=np.inf,
            vectorized=True,
        )  # fmt: skip
        assert sign_flip_p([*values]) == pytest.approx(wanted.pvalue)
    assert (sign_flip_p([1.0] * 6), sign_flip_p([0.3])) == (2 / 64, 1.0)
    assert sign_flip_p([0.1, 0.2, -0.3]) == 1.0  # though their sum is 5e-17
    assert sign_flip_p([0.0, 0.0]) == 1.0
    many = rng.normal(0.3, 1, MOST_FLIPPED)
    longer = [*many, 1e-12]
    assert sign_flip_p(longer) == pytest.approx(sign_flip_p([*many]), abs=0.02)


def test_the_interval_of_two_shares_is_newcombes() -> None:
    """56/70 - 48/80 and 9/10 - 3/10 are examples (a) and (b) of his table II."""
    published = {((0.8, 70), (0.6, 80)): (0.0524, 0.3339), ((0.9, 10), (0.3, 10)): (0.1705, 0.8090)}
    for (first, second), wanted in published.items():
        found = share_difference_interval(first, second)
        assert [found.low, found.high] == pytest.approx(wanted, abs=5e-5)
        assert found.source == Uncertainty.examples


def test_holm_steps_down_and_never_falls() -> None:
    """Sorted: 4 x 0.005, then 3 x 0.01, then 2 x 0.03 and 0.04."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.7, 0.6]) == [1.0, 1.0]
    assert holm([0.04]) == [0.04]
    assert holm([]) == []


def test_an_interval_at_the_level_of_holm_leaves_out_0_where_holm_rejects() -> None:
    assert holm_levels([0.03, 0.001, 0.9]) == pytest.approx([0.975, 1 - 0.05 / 3, 0.975])
    assert holm_levels([0.2]) == [0.95]
    assert holm_levels([]) == []
    rng, inside, rejections = np.random.default_rng(2), [], set()
    for tests in (1, 2, 3, 5, 8) * 100:
        true = rng.choice([0.0, 1.0, 3.0], tests)
        data = rng.normal(true[:, None], 1, (tests, 4))
        p = [mean_difference([*line], [0.0] * 4).p or 0.0 for line in data]
        rejected = 0
        for mean, line, level, corrected in zip(true, data, holm_levels(p), holm(p), strict=True):
            ends = mean_difference([*line], [0.0] * 4, level=level).interval
            assert (corrected < 0.05) == (not ends.low <= 0 <= ends.high)
            assert 1 - 0.05 / tests - 1e-9 <= level <= 0.95 or tests > 1
            inside.append(ends.low <= mean <= ends.high)
            rejected += corrected < 0.05
        rejections.add(rejected)
    assert np.mean(inside) > 0.95 - 4 * math.sqrt(0.05 / len(inside))
    assert len(rejections) > 4
