"""mLSTM token by token, and its product of exponential gates under any gates."""

import pytest
import torch

from lra.models.ops.gated.exponential_product import exponential_product
from tests.attention import compare, drawn, holes
from tests.literal import gated as reference

CHUNK = 8


def gates(length, strength):
    q, k, v = (drawn(2, 2, length, width, seed=width) for width in (3, 4, 5))
    forget = -drawn(2, 2, length, seed=6).abs()
    return [q, k[..., :3], v, forget, strength * drawn(2, 2, length, seed=7)]


@pytest.mark.parametrize("length", [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("strength", [1.0, 30.0])
def test_the_product_is_the_loop(length, padded, strength):
    leaves = [x.requires_grad_() for x in gates(length, strength)]
    keep = holes(length) if padded and length > 7 else None
    seen, _ = exponential_product(*leaves, chunk=CHUNK, keep=keep)
    wanted = reference.exponential_product(*leaves, keep=keep)
    compare(seen, wanted, leaves, keep, atol=1e-9, rtol=1e-9, looser=10)


def test_float32_bears_gates_of_any_strength():
    """Gates that differ by hundreds: none overflows, and the strongest tokens are seen."""
    given = gates(150, 300.0)
    wide, _ = exponential_product(*given, chunk=64)
    leaves = [x.float().requires_grad_() for x in given]
    o, _ = exponential_product(*leaves, chunk=64)
    assert (o - wide).abs().max() < 1e-3 * wide.abs().max()
    assert all(x.isfinite().all() for x in torch.autograd.grad(o.sum(), leaves))
