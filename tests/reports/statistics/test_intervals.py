import math
import tracemalloc

import numpy as np
import pytest

from lra.reports.statistics.intervals import (
    Uncertainty,
    mean_interval,
    median_interval,
    percentiles,
    resample,
    t_quantile,
    wilson_interval,
)


@pytest.mark.parametrize(("p", "degrees"), [(0.0, 3), (1.0, 3), (0.9, 0)])
def test_t_quantile_refuses_what_has_no_answer(p: float, degrees: float) -> None:
    with pytest.raises(ValueError, match="quantile of Student's t needs"):
        t_quantile(p, degrees)


def test_mean_interval_over_three_seeds() -> None:
    found = mean_interval([0.36, 0.38, 0.40])
    half = 4.302652729749462 * 0.02 / math.sqrt(3)
    assert (found.low, found.high) == pytest.approx((0.38 - half, 0.38 + half))
    assert found.source is Uncertainty.seeds
    assert mean_interval([0.5]) is None


def test_wilson_interval_equals_the_published_example() -> None:
    found = wilson_interval(0.8, 10)
    assert (found.low, found.high) == pytest.approx((0.4901625, 0.9433178), abs=1e-6)
    assert found.source is Uncertainty.examples
    assert wilson_interval(0.0, 20).low == 0.0
    assert 0 < wilson_interval(0.0, 20).high < 0.2
    with pytest.raises(ValueError, match="accuracy from 0 to 1"):
        wilson_interval(1.2, 10)


def test_median_interval_takes_the_order_statistics_of_the_printed_tables() -> None:
    for count, rank in ((6, 1), (8, 1), (9, 2), (10, 2), (15, 4), (20, 6), (100, 40)):
        found = median_interval(list(range(1, count + 1)))
        assert (found.low, found.high) == (rank, count + 1 - rank)
        assert found.level == 0.95


def test_median_interval_of_few_samples_says_what_it_covers() -> None:
    found = median_interval([3.0, 1.0, 2.0, 5.0, 4.0])
    assert (found.low, found.high, found.level) == (1.0, 5.0, 1 - 2 / 32)
    assert median_interval([1.0]) is None


def test_resampled_bounds_are_values_of_the_statistic_and_may_be_infinite() -> None:
    def beyond(medians: np.ndarray) -> np.ndarray:
        return np.where(medians[:, 0] > 2.0, np.inf, medians[:, 0] + medians[:, 1])

    found = resample([[1.0, 2.0, 3.0], [10.0, 20.0]], beyond)
    assert (found.low, found.high) == (11.0, np.inf)
    assert resample([[1.0, 2.0, 3.0], [10.0, 20.0]], beyond) == found


def test_percentiles_are_of_the_samples() -> None:
    assert percentiles(range(101)) == (20.0, 80.0)


def test_medians_are_drawn_as_if_resamples_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lra.reports.statistics.intervals.RESAMPLES", 40_000)
    rng = np.random.default_rng(1)
    for size in (2, 3, 5, 8):
        samples = np.sort(rng.lognormal(size=size))
        wanted = np.median(samples[rng.integers(0, size, (40_000, size))], axis=1)
        for lower, upper in ((0.3, 0.7), (0.025, 0.975)):
            monkeypatch.setattr("lra.reports.statistics.intervals.LOWER", lower)
            monkeypatch.setattr("lra.reports.statistics.intervals.UPPER", upper)
            found = resample([samples], lambda medians: medians[:, 0])
            low = np.quantile(wanted, lower, method="lower")
            high = np.quantile(wanted, upper, method="higher")
            assert (found.low, found.high) == pytest.approx((low, high), rel=1e-12), (size, lower)


def test_the_cost_of_an_interval_does_not_grow_with_the_samples() -> None:
    tracemalloc.start()
    resample([np.arange(1.0, 1e5)] * 8, lambda medians: medians[:, 0])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10e6
