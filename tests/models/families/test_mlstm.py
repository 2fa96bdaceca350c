"""mLSTM's product of exponential gates in float32."""

import torch

from lra.models.ops.gated.exponential_product import exponential_product
from tests.attention import drawn


def gates(length, strength):
    q, k, v = (drawn(2, 2, length, width, seed=width) for width in (3, 4, 5))
    forget = -drawn(2, 2, length, seed=6).abs()
    return [q, k[..., :3], v, forget, strength * drawn(2, 2, length, seed=7)]


def test_float32_bears_gates_of_any_strength():
    """Gates that differ by hundreds: none overflows, and the strongest tokens are seen."""
    given = gates(150, 300.0)
    wide, _ = exponential_product(*given, chunk=64)
    leaves = [x.float().requires_grad_() for x in given]
    o, _ = exponential_product(*leaves, chunk=64)
    assert (o - wide).abs().max() < 1e-3 * wide.abs().max()
    assert all(x.isfinite().all() for x in torch.autograd.grad(o.sum(), leaves))
