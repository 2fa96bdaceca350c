"""LRU against its equations, token by token: values, gradients, states, start."""

import math

import pytest
import torch

from lra.models.families.lru import LRU
from lra.runners.training.optimisers.groups import tunings
from tests.attention import builder

SITE = {"width": 6, "heads": 2, "max_length": 32}
built = builder(LRU, **SITE, states=4)


@pytest.mark.parametrize(
    "ring", [(0.9999, 1.0), (0.999999, 1.0), (1 - 1e-9, 1.0), (0.0, 1e-6), (0.5, 0.5 + 1e-12)]
)
def test_states_start_within_any_ring(ring):
    """A square near 1 rounds to 1 in float32, and the logarithm of what is left to -inf."""
    least, most = ring
    parts = builder(LRU, **SITE, states=4096)(radius_min=least, radius_max=most).recurrence
    decay, left = parts.nu.exp(), (2 * parts.log_gamma).exp()
    assert decay.isfinite().all()
    assert parts.log_gamma.isfinite().all()
    torch.testing.assert_close(-torch.expm1(-2 * decay), left, rtol=1e-5, atol=0)
    assert (left <= (1 - least) * (1 + least) * (1 + 1e-5)).all()
    assert (left >= (1 - most) * (1 + most) * (1 - 1e-5)).all()


def test_eigenvalues_start_in_their_ring_and_inputs_keep_their_size():
    mixer = built(states=20_000, radius_min=0.5, radius_max=0.9, phase_max=0.3)
    parts = mixer.recurrence
    radius, phase = (-parts.nu.exp()).exp(), parts.theta.exp()
    assert 0.5 <= radius.min() < 0.51
    assert 0.89 < radius.max() <= 0.9 + 1e-6
    assert abs(phase.mean() - 0.15) < 0.005
    assert phase.max() <= 0.3 + 1e-6
    # uniform over the ring's area, so that half of it lies within the root of the mean square
    inside = (radius < math.sqrt((0.25 + 0.81) / 2)).double().mean()
    assert abs(inside - 0.5) < 0.02
    torch.testing.assert_close(parts.log_gamma.exp() ** 2 + radius**2, torch.ones_like(radius))
    assert abs(parts.entry.std() * math.sqrt(2 * 6) - 1) < 0.02
    assert abs(mixer.readout.std() * math.sqrt(20_000) - 1) < 0.02


def test_the_whole_disc_gives_no_infinite_parameter():
    parts = built(states=100_000).recurrence
    assert all(parameter.isfinite().all() for parameter in parts.parameters())


def test_the_recurrence_learns_slowly_without_decay():
    mixer = built(rate=0.5)
    names = {id(parameter): name for name, parameter in mixer.named_parameters()}
    special = [(names[id(parameter)], tuning) for parameter, tuning in tunings(mixer)]
    slow = {name for name, tuning in special if tuning.learning_rate_scale == 0.5}
    assert {tuning.weight_decay for name, tuning in special if name in slow} == {0.0}
    assert slow == {f"recurrence.{name}" for name in ("nu", "theta", "log_gamma", "entry")}
