import math

import numpy as np
import pytest

from reports.statistics import (
    Reach,
    Uncertainty,
    crossover,
    fit_exponent,
    local_slopes,
    mean_interval,
    median_interval,
    percentiles,
    t_quantile,
    wilson_interval,
)


@pytest.mark.parametrize(
    ("degrees", "wanted"),
    [
        (1, 12.706204736174694),
        (2, 4.302652729749462),
        (3, 3.182446305283708),
        (9, 2.262157162798205),
        (30, 2.0422724563012373),
        (1000, 1.9623390808264074),
    ],
)
def test_t_quantile_equals_the_printed_tables(degrees: int, wanted: float) -> None:
    assert t_quantile(0.975, degrees) == pytest.approx(wanted, rel=1e-9)
    assert t_quantile(0.025, degrees) == pytest.approx(-wanted, rel=1e-9)


def test_t_quantile_of_one_and_two_degrees_equals_the_closed_forms() -> None:
    for p in (0.6, 0.9, 0.999):
        assert t_quantile(p, 1) == pytest.approx(math.tan(math.pi * (p - 0.5)), rel=1e-10)
        x = 2 * p - 1
        assert t_quantile(p, 2) == pytest.approx(x * math.sqrt(2 / (1 - x * x)), rel=1e-10)
    assert t_quantile(0.5, 7) == 0.0


@pytest.mark.parametrize(("p", "degrees"), [(0.0, 3), (1.0, 3), (0.9, 0)])
def test_t_quantile_refuses_what_has_no_answer(p: float, degrees: float) -> None:
    with pytest.raises(ValueError, match="a t quantile needs"):
        t_quantile(p, degrees)


def test_mean_interval_over_three_seeds() -> None:
    found = mean_interval([0.36, 0.38, 0.40])
    assert found is not None
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
    with pytest.raises(ValueError, match="share in"):
        wilson_interval(1.2, 10)


def test_median_interval_covers_the_median_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(1000):
        found = median_interval(rng.lognormal(size=15))
        assert found is not None
        hits += found.low <= 1.0 <= found.high
    # of 15 samples the 4th and 12th: exactly 96.48 %
    assert hits / 1000 == pytest.approx(0.9648, abs=0.02)


def test_median_interval_takes_the_order_statistics_of_the_printed_tables() -> None:
    for count, rank in ((6, 1), (8, 1), (9, 2), (10, 2), (15, 4), (20, 6), (100, 40)):
        found = median_interval(list(range(1, count + 1)))
        assert found is not None
        assert (found.low, found.high) == (rank, count + 1 - rank)
        assert found.level == 0.95


def test_median_interval_of_few_samples_says_what_it_covers() -> None:
    found = median_interval([3.0, 1.0, 2.0, 5.0, 4.0])
    assert found is not None
    assert (found.low, found.high, found.level) == (1.0, 5.0, 1 - 2 / 32)
    assert median_interval([1.0]) is None


def test_bootstrap_gives_the_same_digits_each_time() -> None:
    samples = list(np.random.default_rng(1).lognormal(size=(3, 9)))
    values = [float(np.median(s)) for s in samples]
    fits = [fit_exponent([1, 2, 4], values, samples) for _ in range(2)]
    assert fits[0].noise == fits[1].noise


def test_percentiles_are_of_the_samples() -> None:
    assert percentiles(range(101)) == (20.0, 80.0)


def test_exponent_of_an_exact_power_law() -> None:
    lengths = [256, 512, 1024, 2048]
    fit = fit_exponent(lengths, [3e-6 * n**1.5 for n in lengths])
    assert fit.exponent == pytest.approx(1.5)
    assert fit.value(4096) == pytest.approx(3e-6 * 4096**1.5)
    assert fit.residuals is not None
    assert fit.residuals.high - fit.residuals.low < 1e-6
    assert fit.noise is None


def test_exponent_interval_from_residuals_equals_the_textbook_formula() -> None:
    x = np.array([1.0, 2.0, 3.0, 4.0])
    y = np.array([1.1, 1.9, 3.2, 3.9])
    fit = fit_exponent([int(2**v) for v in x], list(2**y))
    # by hand: slope 0.97, residual sum of squares 0.063, Sxx 5
    assert fit.exponent == pytest.approx(0.97)
    assert fit.residuals is not None
    half = 4.302652729749462 * math.sqrt(0.063 / 2 / 5)
    assert fit.residuals.high - fit.exponent == pytest.approx(half)
    assert fit.residuals.source is Uncertainty.residuals


def test_exponent_prints_the_wider_of_its_two_intervals() -> None:
    rng = np.random.default_rng(0)
    lengths = [256, 512, 1024]
    straight = [1e-5 * n for n in lengths]
    noisy = [v * (1 + 0.3 * rng.standard_normal(20)) for v in straight]
    fit = fit_exponent(lengths, straight, noisy)
    assert fit.interval is fit.noise
    assert fit.noise is not None
    assert fit.noise.source is Uncertainty.timing_noise
    bent = fit_exponent(lengths, [1.0, 1.1, 4.0], [[1.0, 1.0], [1.1, 1.1], [4.0, 4.0]])
    assert bent.interval is bent.residuals


def test_two_lengths_leave_no_residuals() -> None:
    fit = fit_exponent([256, 512], [1.0, 2.0])
    assert fit.exponent == pytest.approx(1.0)
    assert fit.residuals is None
    assert fit.interval is None


@pytest.mark.parametrize(
    ("lengths", "values"),
    [([256], [1.0]), ([512, 256], [1.0, 2.0]), ([256, 512], [1.0, 0.0]), ([256, 512], [1.0])],
)
def test_fit_refuses_what_it_cannot_fit(lengths: list[int], values: list[float]) -> None:
    with pytest.raises(ValueError, match="rising lengths"):
        fit_exponent(lengths, values)


def test_local_slopes() -> None:
    assert local_slopes([256, 512, 1024], [1.0, 2.0, 8.0]) == pytest.approx([1.0, 2.0])


def test_crossover_is_interpolated_on_logarithmic_axes() -> None:
    found = crossover([256, 512, 1024], [4.0, 2.0, 0.5])
    # log2 ratio goes from 1 to -1 between 512 and 1024: half way in log length
    assert found.reach is Reach.within
    assert found.length == pytest.approx(512 * math.sqrt(2))
    assert str(found) == "724"


def test_crossover_is_the_last_one() -> None:
    found = crossover([256, 512, 1024, 2048], [0.9, 0.5, 2.0, 0.5])
    assert found.length == pytest.approx(1024 * math.sqrt(2))


def test_crossover_that_lies_outside_the_lengths_is_not_invented() -> None:
    below = crossover([256, 512], [0.9, 0.8])
    never = crossover([256, 512], [0.5, 1.2])
    assert (below.reach, below.length, str(below)) == (Reach.below, None, "≤ 256")
    assert (never.reach, never.length, str(never)) == (Reach.never, None, "not up to 512")
    assert crossover([], []).reach is Reach.unknown


def test_crossover_at_a_ratio_of_exactly_one() -> None:
    assert crossover([256, 512, 1024], [2.0, 1.0, 0.5]).length == pytest.approx(512)


def test_crossover_interval_contains_it_and_opens_where_noise_hides_it() -> None:
    rng = np.random.default_rng(0)
    lengths, ratios = [256, 512, 1024], [2.0, 1.1, 0.6]
    calm = [r * (1 + 0.02 * rng.standard_normal(11)) for r in ratios]
    found = crossover(lengths, [float(np.median(s)) for s in calm], calm)
    assert found.length is not None
    assert found.interval is not None
    assert 512 < found.interval.low <= found.length <= found.interval.high < 1024
    wild = [r * np.exp(1.5 * rng.standard_normal(11)) for r in [1.2, 1.1, 0.95]]
    opened = crossover(lengths, [1.2, 1.1, 0.95], wild)
    assert opened.interval is not None
    assert opened.interval.high == math.inf
    assert str(opened).endswith("∞]")
