"""Forgetting attention over long sequences, and where its gates start."""

import torch

from lra.models.families.forgetting import Forgetting, fading_attention
from lra.models.mixer import Site
from tests.attention import drawn


def test_far_from_the_first_token_nothing_is_lost():
    """Sums of gates that all tokens share would cost digits: with these, an error of 1e-4."""
    length = 4096
    q, k, v = (drawn(1, 2, length, 8, seed=seed) for seed in range(3))
    g = drawn(1, 2, length, seed=3).sigmoid().log()
    wanted = fading_attention(q, k, v, g, causal=True)
    seen = fading_attention(q.float(), k.float(), v.float(), g.float(), causal=True)
    assert (seen - wanted).abs().max() < 2e-5


def test_gates_start_at_a_half_or_at_times():
    site = Site(width=12, heads=3, max_length=9)
    assert not Forgetting(site).forget_map.bias.any()
    timed = Forgetting(site, gate_start="times", time_min=2.0, time_max=32.0)
    fade = timed.forget_map.bias.sigmoid().log()
    wanted = torch.tensor([-1 / 2, -1 / 8, -1 / 32])
    torch.testing.assert_close(fade, wanted, atol=1e-6, rtol=1e-5)
