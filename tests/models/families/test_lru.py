"""Where the LRU starts, and how it learns."""

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


def test_the_recurrence_learns_slowly_without_decay():
    mixer = built(rate=0.5)
    names = {id(parameter): name for name, parameter in mixer.named_parameters()}
    special = [(names[id(parameter)], tuning) for parameter, tuning in tunings(mixer)]
    slow = {name for name, tuning in special if tuning.learning_rate_scale == 0.5}
    assert {tuning.weight_decay for name, tuning in special if name in slow} == {0.0}
    assert slow == {f"recurrence.{name}" for name in ("nu", "theta", "log_gamma", "entry")}
