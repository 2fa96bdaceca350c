"""H-Transformer against the weights that its equation gives to every pair of tokens."""

import pytest
import torch
from torch import Tensor

from lra.models.families.h_transformer import HTransformer
from lra.models.ops.hierarchical.attention import hierarchical_attention
from lra.models.ops.hierarchical.clusters import Plan
from tests.attention import DIRECTIONS, builder, drawn
from tests.literal.h_transformer import hierarchical_attention as literal


def heads(length: int, *, width: int = 5, values: int = 4) -> list[Tensor]:
    widths = (width, width, values)
    return [drawn(2, 3, length, w, seed=s).requires_grad_() for s, w in enumerate(widths)]


def test_backward_twice_is_refused_not_wrong():
    qkv = heads(20)
    out = hierarchical_attention(*qkv, block=4)
    cotangent = torch.ones_like(out, requires_grad=True)
    (gradient,) = torch.autograd.grad(out, qkv[0], cotangent, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_gradients_of_a_graph_that_is_kept_are_equal_twice():
    qkv = heads(40, values=5)  # equal widths: buffers are used twice
    out = hierarchical_attention(*qkv, block=4)
    cotangent = drawn(*out.shape, seed=4)
    first = torch.autograd.grad(out, qkv, cotangent, retain_graph=True)
    again = torch.autograd.grad(out, qkv, cotangent)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


built = builder(HTransformer)


@DIRECTIONS
def test_large_scores_neither_overflow_nor_vanish(causal):
    q, k, v = (x.detach().float() for x in heads(80))
    q, k = 30 * q, 30 * k
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out = hierarchical_attention(*inputs, block=4, causal=causal)
    wanted = literal(*(x.double() for x in inputs), block=4, causal=causal)
    torch.testing.assert_close(out.double(), wanted, rtol=1e-3, atol=1e-3)
    for gradient in torch.autograd.grad(out.sum(), inputs):
        assert gradient.isfinite().all()


def test_levels_end_when_all_blocks_are_neighbours():
    assert Plan.of(1, 1, 5, 4, causal=False).levels == (2,)
    assert Plan.of(1, 1, 9, 4, causal=False).levels == (3, 2)
    assert Plan.of(1, 1, 4096, 16, causal=True).levels == (256, 128, 64, 32, 16, 8, 4, 2)
