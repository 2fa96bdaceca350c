"""Exponents and crossovers: what they are, and when they are not printed."""

import math
import random

import numpy as np
import pytest
from fuzz import cases

from lra.reports.statistics.intervals import Uncertainty
from lra.reports.statistics.power_law import (
    FEWEST,
    RESOLVED,
    WIDEST,
    Reach,
    crossover,
    fit_exponent,
)


def test_bootstrap_gives_the_same_digits_each_time() -> None:
    samples = list(np.random.default_rng(1).lognormal(size=(3, 9)))
    values = [float(np.median(s)) for s in samples]
    fits = [fit_exponent([1, 2, 4], values, samples) for _ in range(2)]
    assert fits[0].noise == fits[1].noise


def test_exponent_of_an_exact_power_law() -> None:
    lengths = [256, 512, 1024, 2048]
    fit = fit_exponent(lengths, [3e-6 * n**1.5 for n in lengths])
    assert fit.exponent == pytest.approx(1.5)
    assert fit.value(4096) == pytest.approx(3e-6 * 4096**1.5)
    assert fit.residuals.high - fit.residuals.low < 1e-6
    assert fit.noise is None


def test_exponent_interval_from_residuals_equals_the_textbook_formula() -> None:
    x = np.array([1.0, 2.0, 3.0, 4.0])
    y = np.array([1.1, 1.9, 3.2, 3.9])
    fit = fit_exponent([int(2**v) for v in x], list(2**y))
    # by hand: slope 0.97, residual sum of squares 0.063, Sxx 5
    assert fit.exponent == pytest.approx(0.97)
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


def test_crossover_is_interpolated_on_logarithmic_axes() -> None:
    found = crossover([256, 512, 1024], [4.0, 2.0, 0.5])
    # log2 ratio goes from 1 to -1 between 512 and 1024: half way in log length
    assert found.reach is Reach.within
    assert found.length == pytest.approx(512 * math.sqrt(2))
    assert str(found) == "too uncertain (no repeated samples)"


def test_crossover_is_the_last_one() -> None:
    found = crossover([256, 512, 1024, 2048], [0.9, 0.5, 2.0, 0.5])
    assert found.length == pytest.approx(1024 * math.sqrt(2))


def test_crossover_that_lies_outside_the_lengths_is_not_invented() -> None:
    below = crossover([256, 512], [0.9, 0.8])
    never = crossover([256, 512], [0.5, 1.2])
    assert (below.reach, below.length, str(below)) == (
        Reach.below,
        None,
        "too uncertain (no repeated samples)",
    )
    assert (never.reach, never.length, str(never)) == (Reach.never, None, str(below))
    assert crossover([], []).reach is Reach.unknown


def test_crossover_at_a_ratio_of_exactly_one() -> None:
    assert crossover([256, 512, 1024], [2.0, 1.0, 0.5]).length == pytest.approx(512)


def test_crossover_interval_contains_it_and_opens_where_noise_hides_it() -> None:
    rng = np.random.default_rng(0)
    lengths, ratios = [256, 512, 1024], [2.0, 1.1, 0.6]
    calm = [r * (1 + 0.02 * rng.standard_normal(11)) for r in ratios]
    found = crossover(lengths, [float(np.median(s)) for s in calm], calm)
    assert found.length is not None
    assert 512 < found.interval.low <= found.length <= found.interval.high < 1024
    wild = [r * np.exp(1.5 * rng.standard_normal(11)) for r in [1.2, 1.1, 0.95]]
    opened = crossover(lengths, [1.2, 1.1, 0.95], wild)
    assert opened.interval.high == math.inf
    assert str(opened).endswith("∞]")
    assert str(opened).startswith("too uncertain [")


@pytest.mark.parametrize("case", range(cases(20)))
def test_an_exponent_is_printed_only_where_its_interval_tells_powers_apart(case: int) -> None:
    draw = random.Random(case)
    lengths = [2**n for n in range(6, 6 + draw.randint(2, 8))]
    power, noise = draw.choice([0.0, 1.0, 1.5, 2.0]), draw.choice([0.0, 0.01, 0.3, 2.0])
    values = [n**power * math.exp(draw.gauss(0, noise)) for n in lengths]
    samples = [[v * math.exp(draw.gauss(0, noise)) for _ in range(9)] for v in values]
    fit = fit_exponent(lengths, values, draw.choice([None, samples]))
    text = str(fit)
    assert text.startswith("too uncertain") == (not fit.resolved)
    if not fit.resolved:
        # the number itself is nowhere in the text, only the ends of its interval
        shown = f"{fit.exponent:.2f}"
        ends = (
            []
            if fit.interval is None
            else [f"{e + 0.0:.2f}" for e in (fit.interval.low, fit.interval.high)]
        )
        assert shown not in text or shown in ends
        assert (
            len(lengths) < FEWEST
            or fit.interval is None
            or (fit.interval.high - fit.interval.low > 2 * RESOLVED)
        )
    else:
        assert abs(float(text.split(maxsplit=1)[0]) - fit.exponent) <= 0.006
        assert "-0.00" not in text


def test_the_interval_of_a_flat_and_noisy_cost_stands_in_place_of_its_exponent() -> None:
    fit = fit_exponent([256, 512, 1024], [1.0, 1.2, 1.0])
    assert fit.exponent == pytest.approx(0.0, abs=1e-9)
    assert fit.interval.high > 0.4
    assert str(fit).startswith("too uncertain [-")
    assert str(fit_exponent([256, 512], [1.0, 2.0])) == "too uncertain (2 lengths)"


@pytest.mark.parametrize("case", range(cases(20)))
def test_a_crossover_is_printed_only_where_noise_leaves_it(case: int) -> None:
    draw = random.Random(case)
    lengths = [2**n for n in range(6, 6 + draw.randint(1, 7))]
    start, slope = draw.uniform(-1, 2), draw.choice([0.0, 0.05, 0.7])
    noise = draw.choice([0.0, 0.02, 0.8])
    ratios = [math.exp(start - slope * i) for i in range(len(lengths))]
    samples = [[r * math.exp(draw.gauss(0, noise)) for _ in range(9)] for r in ratios]
    found = crossover(lengths, [float(np.median(s)) for s in samples], samples)
    low, high = found.interval.low, found.interval.high
    sure = math.isinf(low) if found.reach is Reach.never else high <= WIDEST * (low or lengths[0])
    assert found.resolved == sure
    assert str(found).startswith("too uncertain [") == (not sure)


def test_a_crossover_of_ratios_about_one_is_not_resolved() -> None:
    rng = np.random.default_rng(0)
    lengths = [256, 512, 1024]
    for level in (0.99, 1.01):  # below from the start, or never: both only by chance
        samples = [level * np.exp(0.2 * rng.standard_normal(11)) for _ in lengths]
        found = crossover(lengths, [level] * 3, samples)
        assert not found.resolved
