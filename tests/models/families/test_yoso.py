"""YOSO against its literal forms: both modes, both gradients, tables, chunks and padding."""

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from lra.models.families.yoso import Rule, Yoso, YosoEstimator, yoso_attention
from lra.models.ops.hashing.collision_chance import Gradient
from lra.models.ops.hashing.collisions import (
    draw_planes,
)
from tests import attention
from tests.attention import builder, drawn

compare = partial(attention.compare, atol=1e-12, rtol=1e-11, looser=10)


def planes(hashes: int, tau: int, width: int = 4, seed: int = 0) -> Tensor:
    return draw_planes(3, width, hashes * tau, torch.Generator().manual_seed(seed))


def test_equal_vectors_in_single_precision_give_no_nan():
    x = drawn(1, 3, 200, 5).float().requires_grad_()
    unit = F.normalize(x, dim=-1)
    assert (unit.square().sum(-1) > 1).any()
    for gradient in Gradient:
        out = yoso_attention(x, x, x, Rule(8, gradient=gradient))
        assert out.isfinite().all()
        assert torch.autograd.grad(out.square().sum(), x)[0].isfinite().all()


def test_a_query_whose_codes_meet_no_key_is_zero():
    q = drawn(1, 3, 4, 4)
    keys = -q.mean(2, keepdim=True).expand_as(q)
    inputs = [x.clone().requires_grad_() for x in (keys.neg(), keys, q)]
    out = yoso_attention(*inputs, Rule(2, planes(3, 2)))
    assert not out.any()
    assert not any(x.any() for x in torch.autograd.grad(out.sum(), inputs))


built = builder(Yoso)


@pytest.mark.parametrize(("length", "tau"), [(512, 9), (1024, 10), (2000, 11), (4000, 12)])
def test_tau_follows_the_length(length, tau):
    mixer = built(max_length=length, hashes=2)
    assert mixer.core.tau == tau
    assert mixer.core.planes.shape == (3, 4, 2 * tau)


def test_an_expectation_has_no_planes():
    plain = built(mode=YosoEstimator.expectation)
    assert not [*plain.buffers()]
    plain.after_step(3, torch.Generator())
