"""What part of simulated experiments have the truth in an interval of 95 %: the older kinds."""

from collections.abc import Callable

import numpy as np
import pytest

from lra.reports.statistics import intervals
from lra.reports.statistics.intervals import (
    Interval,
    bootstrap_interval,
    mean_interval,
    median_interval,
    wilson_interval,
)
from lra.reports.statistics.paired_tests import mean_difference, share_difference_interval
from lra.reports.statistics.power_law import fit_exponent

EXPERIMENTS = 2000
LENGTHS = [256, 512, 1024, 2048]
Random = np.random.Generator


def accuracy(rng: Random, share: float, count: int) -> tuple[float, int]:
    """Return an observed accuracy on `count` examples, and the count."""
    return rng.binomial(count, share) / count, count


def paired(rng: Random) -> Interval | None:
    """Return the interval of a difference of 0.3 whose pairs share most of their variation."""
    common = rng.normal(size=5)
    first, second = common + 0.3 + 0.2 * rng.normal(size=5), common + 0.2 * rng.normal(size=5)
    return mean_difference([*first], [*second]).interval


def exponent(rng: Random) -> Interval | None:
    """Return the interval of a fitted exponent of 1.5 under independent errors."""
    times = [n**1.5 * float(np.exp(0.1 * rng.normal())) for n in LENGTHS]
    return fit_exponent(LENGTHS, times).residuals


def noise(rng: Random) -> Interval | None:
    """Return the interval of an exponent from 10 timed samples at each length."""
    samples = [n**1.5 * np.exp(0.1 * rng.normal(size=10)) for n in LENGTHS]
    return fit_exponent(LENGTHS, [float(np.median(s)) for s in samples], samples).noise


KINDS: dict[str, tuple[float, Callable[[Random], Interval | None]]] = {
    "t, 3 seeds": (0.7, lambda rng: mean_interval([*(0.7 + 0.1 * rng.normal(size=3))])),
    "t, 10 seeds": (0.7, lambda rng: mean_interval([*(0.7 + 0.1 * rng.normal(size=10))])),
    "t, pairs": (0.3, paired),
    "Wilson": (0.7, lambda rng: wilson_interval(*accuracy(rng, 0.7, 500))),
    "Wilson, near 1": (0.97, lambda rng: wilson_interval(*accuracy(rng, 0.97, 2000))),
    "Newcombe": (
        0.1,
        lambda rng: share_difference_interval(accuracy(rng, 0.7, 500), accuracy(rng, 0.6, 500)),
    ),
    "bootstrap": (0.2, lambda rng: bootstrap_interval([*(0.2 + rng.normal(size=60))])),
    "median": (1.0, lambda rng: median_interval(np.exp(rng.normal(size=100)))),
    "exponent, residuals": (1.5, exponent),
    "exponent, timing noise": (1.5, noise),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_nominal_interval_covers(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "RESAMPLES", 1000)
    truth, draw = KINDS[kind]
    rng, inside = np.random.default_rng(7), 0
    for _ in range(EXPERIMENTS):
        found = draw(rng)
        assert found is not None
        inside += found.low <= truth <= found.high
    assert 0.93 <= inside / EXPERIMENTS <= 0.97, inside / EXPERIMENTS
