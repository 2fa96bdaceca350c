"""Linear attention against the literal form, and what follows from being exact."""

import pytest
import torch

from lra.models.contract.counting import (
    ElementCounter,
)
from lra.models.families.linear import FeatureChoice, LinearAttention, linear_attention
from lra.models.mixer import Site
from tests.attention import DIRECTIONS, Calls
from tests.literal.features import weighted_mean
from tests.models.ops.linear.feature_forms import draw, small_blocks

__all__ = ["small_blocks"]


def make(causal=False, **options) -> LinearAttention:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LinearAttention(Site(width=12, heads=3, max_length=24, causal=causal), **options)


def test_backward_twice_is_refused_not_wrong():
    q, k, v = draw(8)
    cotangent = torch.ones_like(v, requires_grad=True)
    (gradient,) = torch.autograd.grad(linear_attention(q, k, v), q, cotangent, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@DIRECTIONS
def test_result_joins_its_heads_without_a_copy(causal):
    q, k, v = (torch.randn(2, 29, 3, 5).transpose(1, 2) for _ in range(3))
    o = linear_attention(q, k, v, causal=causal)
    assert o.transpose(1, 2).flatten(-2)._base is not None


@DIRECTIONS
@pytest.mark.parametrize("shift", [-100.0, 100.0])
def test_exponentials_neither_overflow_nor_vanish(causal, shift):
    q, k, v = (x.detach().float() for x in draw(50))
    q, k = 4 * q - shift, 4 * k + shift
    assert (k.exp() * q.exp()).isfinite().logical_not().any()
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out = linear_attention(*inputs, FeatureChoice.exp, causal=causal, chunk=16)
    q, k, v = (x.double() for x in inputs)
    wanted = weighted_mean(q.exp() @ k.exp().mT, v, causal=causal)
    torch.testing.assert_close(out.double(), wanted, rtol=1e-4, atol=1e-5)
    for gradient in torch.autograd.grad(out.square().sum(), inputs):
        assert gradient.isfinite().all()


def test_a_short_sequence_is_mixed_at_once_without_copies_or_zeros_to_add_to():
    called = []
    for length in (128, 700, 4096):
        q, k, v = (torch.randn(2, 4, length, 32) for _ in range(3))
        with Calls() as calls, ElementCounter() as elements:
            linear_attention(q, k, v)
        called.append(calls.names)
        # Four passes for each side, the numerator as product, view and mean, and its weights.
        assert elements.written < 12.7 * q.numel()
    assert called[0] == called[1] == called[2]
    assert not {"copy_", "clone", "cat", "new_zeros", "new_ones", "where"} & {*called[0]}
    assert len(called[0]) <= 20


def test_a_short_step_takes_as_many_calls_at_any_length_and_cuts_nothing():
    called = []
    for length in (128, 700):
        q, k, v = (torch.randn(2, 4, length, 32, requires_grad=True) for _ in range(3))
        with Calls() as calls:
            o = linear_attention(q, k, v)
            torch.autograd.grad(o, (q, k, v), torch.ones_like(o))
        called.append(calls.names)
    assert called[0] == called[1]
    # Two for the columns beside values and beside their gradients; no part is put together.
    assert called[0].count("copy_") <= 3
    assert "zeros_like" not in called[0]
