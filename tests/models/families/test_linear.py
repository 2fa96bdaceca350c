"""What linear attention calls and copies."""

import pytest
import torch

from lra.models.contract.counting import (
    ElementCounter,
)
from lra.models.families.linear import linear_attention
from tests.attention import DIRECTIONS, Calls
from tests.models.ops.linear.feature_forms import draw


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
