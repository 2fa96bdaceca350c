"""FAVOR+ written out densely, and draws, for the tests of the Performer."""

import math

import pytest
import torch
from torch import Tensor

from models.families.causal_product import causal_product
from models.families.feature_product import FeatureMaps, feature_product
from models.families.performer import (
    Kernel,
    draw_projection,
)

DIRECTIONS = pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
KERNELS = pytest.mark.parametrize("kernel", list(Kernel))
FEATURES, WIDTH, EPSILON = 11, 5, 1e-3


def draw(length: int, *, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (2, 3, length, WIDTH)
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for _ in range(3)
    ]


def projection(features: int = FEATURES, width: int = WIDTH, *, seed: int = 1, **options) -> Tensor:
    return draw_projection(features, width, torch.Generator().manual_seed(seed), **options)


def attend(q, k, v, maps: FeatureMaps, *, causal, keep=None, chunk=8):
    if not causal:
        return feature_product(q, k, v, maps, keep)
    return causal_product(q, k, v, maps, chunk=chunk, keep=keep)[0]


def positive(x, W):
    """phi(x) = exp(W x - |x|^2 / 2) / sqrt(m), of x already scaled."""
    return torch.exp(x @ W.T - x.square().sum(-1, keepdim=True) / 2) / math.sqrt(len(W))


def dense(q, k, v, W, kernel, *, keep=None, causal=False):
    """The paper's estimate, with the whole matrix of weights."""
    scale = W.shape[1] ** -0.25
    if kernel is Kernel.softmax:
        phi_q, phi_k = positive(scale * q, W), positive(scale * k, W)
    else:
        phi_q, phi_k = ((scale * x @ W.T).relu() + EPSILON for x in (q, k))
    weights = phi_q @ phi_k.mT
    if causal:
        weights = weights.tril()
    if keep is not None:
        weights = weights * keep[:, None, None, :]
    total = weights.sum(-1, keepdim=True)
    return torch.where(total > 0, weights @ v / torch.where(total > 0, total, 1), 0)


def compare(run, reference, inputs):
    out, wanted = run(), reference()
    torch.testing.assert_close(out, wanted, rtol=1e-11, atol=1e-12)
    cotangent = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(9)).to(wanted)
    for found, want in zip(
        torch.autograd.grad(out, inputs, cotangent),
        torch.autograd.grad(wanted, inputs, cotangent),
        strict=True,
    ):
        torch.testing.assert_close(found, want, rtol=1e-10, atol=1e-11)
