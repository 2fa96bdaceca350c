"""Performer: the blocked product against dense FAVOR+ of the same draw."""

import math

import pytest
import torch

from lra.models.families.performer import Kernel, performer_maps
from lra.models.ops.linear import features as blocked
from tests.attention import DIRECTIONS
from tests.literal.features import (
    performer_features as features,
)
from tests.models.ops.linear.feature_forms import PADDED, attend, compare, draw, holes, small_blocks
from tests.models.ops.linear.performer_forms import KERNELS, dense, projection

__all__ = ["small_blocks"]
LOOSE = {Kernel.trigonometric: 1e-9, Kernel.tanh: 1e-9, Kernel.cos: 1e-9, Kernel.identity: 1e-9}
"""Sums of weights of both signs cancel, which costs digits."""


@DIRECTIONS
@PADDED
@pytest.mark.parametrize("kernel", list(Kernel))
@pytest.mark.parametrize("length", [2, 63])
@pytest.mark.usefixtures("small_blocks")
def test_outputs_and_gradients_equal_the_dense_estimate(kernel, length, padded, causal):
    q, k, v = draw(length)
    W, keep = projection(), holes(length) if padded else None
    compare(
        lambda: attend(q, k, v, performer_maps(W, kernel), causal=causal, keep=keep),
        lambda: dense(q, k, v, W, kernel, keep=keep, causal=causal),
        (q, k, v),
        tolerance=LOOSE.get(kernel, 1e-11),
    )


@KERNELS
@pytest.mark.parametrize("chunk", [3, 64])
@pytest.mark.parametrize("rows", [1, 1000])
def test_chunk_and_block_never_change_the_result(kernel, chunk, rows, monkeypatch):
    monkeypatch.setattr(blocked, "CPU_BLOCK", 1)
    monkeypatch.setattr(blocked, "MINIMUM_ROWS", rows)
    (q, k, v), W = draw(37), projection()
    compare(
        lambda: attend(q, k, v, performer_maps(W, kernel), causal=True, chunk=chunk),
        lambda: dense(q, k, v, W, kernel, causal=True),
        (q, k, v),
        tolerance=LOOSE.get(kernel, 1e-11),
    )


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


@DIRECTIONS
@pytest.mark.parametrize("kernel", [kernel for kernel in Kernel if kernel.generalised])
def test_unnormalised_generalised_attention(kernel, causal):
    (q, k, v), W = draw(30), projection()
    maps = performer_maps(W, kernel, normalise=False)
    weights = features(q, W, kernel) @ features(k, W, kernel).mT
    compare(
        lambda: attend(q, k, v, maps, causal=causal),
        lambda: (weights.tril() if causal else weights) @ v,
        (q, k, v),
    )
