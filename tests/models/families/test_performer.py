"""Performer: the blocked product against dense FAVOR+ of the same draw."""

import math

import torch

from lra.models.families.performer import Kernel, performer_maps
from tests.attention import DIRECTIONS
from tests.models.ops.linear.feature_forms import attend, small_blocks
from tests.models.ops.linear.performer_forms import dense, projection

__all__ = ["small_blocks"]


@DIRECTIONS
def test_long_vectors_are_stable_in_single_precision(causal):
    width, length = 64, 200
    generator = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(1, 2, length, width, generator=generator) for _ in range(3))
    # Length after the scale d^(-1/4): |x|^2 = 288, where exp(-|x|^2 / 2) alone is 1e-63.
    q, k = (torch.nn.functional.normalize(x, dim=-1) * math.sqrt(288) * width**0.25 for x in (q, k))
    W = projection(128, width)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    wide = [x.detach().double().requires_grad_() for x in inputs]
    out = attend(*inputs, performer_maps(W.float()), causal=causal, chunk=64)
    wanted = dense(*wide, W, Kernel.softmax, causal=causal)
    torch.testing.assert_close(out.double(), wanted, rtol=1e-3, atol=1e-3)
    for found, want in zip(
        torch.autograd.grad(out.sum(), inputs),
        torch.autograd.grad(wanted.sum(), wide),
        strict=True,
    ):
        error = (found.double() - want).norm() / want.norm()
        assert error < 1e-3, f"relative error of a gradient: {error:.1e}"
