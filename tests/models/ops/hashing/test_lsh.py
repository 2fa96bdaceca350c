"""Attention among tokens that hash alike: short keys."""

import torch
from torch import Tensor

from lra.models.ops.hashing.lsh import Rules, lsh_attention
from tests.attention import drawn


def tokens(length: int, *, batch: int = 2, width: int = 3) -> list[Tensor]:
    return [drawn(batch, 2, length, width, seed=s).requires_grad_() for s in range(2)]


def test_a_key_of_almost_no_length_has_a_small_gradient() -> None:
    u, v = tokens(8)
    with torch.no_grad():
        u[:, :, 3] = 0
    o = lsh_attention(u, v, torch.zeros(2, 2, 1, 8, dtype=torch.int64), Rules(8))
    gradient = torch.autograd.grad(o.sum(), u)[0]
    assert gradient.isfinite().all()
    assert gradient.abs().max() < 1e4
