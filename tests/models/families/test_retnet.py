"""RetNet in one direction, and its decays in half precision."""

import math

import torch

from lra.models.families.retnet import RetNet, log_decays
from lra.models.mixer import Layout
from tests.attention import builder, drawn

LENGTH, WIDTH = 21, 12


def built(**options) -> RetNet:
    mixer = builder(RetNet, chunk=8)(**options)
    mixer.place = options.get("layer", 0), options.get("depth", 1)
    return mixer


def test_one_direction_is_the_causal_form():
    odd, x = {"heads": 4, "rotary": False}, drawn(2, LENGTH, WIDTH)
    one, causal = built(bidirectional=False, **odd), built(causal=True, **odd)
    torch.testing.assert_close(one(x, Layout()), causal(x, Layout()), atol=0, rtol=0)
    assert one.traits.causal


def test_decays_are_those_of_the_paper_in_half_precision_too():
    """A model in bfloat16 would forget at rates that are off by a half per cent."""
    gates = log_decays(torch.zeros(1, 6, 2, 4, dtype=torch.bfloat16))
    wanted = torch.tensor([math.log1p(-(2.0 ** (-5 - h))) for h in range(6)])
    torch.testing.assert_close(gates, wanted, atol=0, rtol=1e-6)
    half = built(causal=True, heads=6).bfloat16()
    assert not [*half.buffers()]
