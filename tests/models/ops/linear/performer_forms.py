"""FAVOR+ written out densely, and draws, for the tests of the Performer."""

import math

import pytest
import torch
from torch import Tensor

from models.families.performer import Kernel, Performer, draw_projection
from models.mixer import Site
from tests.models.ops.linear.feature_forms import WIDTH, mean

MAIN = [Kernel.softmax, Kernel.trigonometric, Kernel.relu]
"""One kernel of each kind of feature map."""
KERNELS = pytest.mark.parametrize("kernel", MAIN)
FEATURES, EPSILON = 11, 1e-3
FUNCTIONS = {
    Kernel.relu: torch.relu,
    Kernel.exp: torch.exp,
    Kernel.gelu: torch.nn.functional.gelu,
    Kernel.sigmoid: torch.sigmoid,
    Kernel.abs: torch.abs,
    Kernel.tanh: torch.tanh,
    Kernel.cos: torch.cos,
    Kernel.identity: lambda x: x,
    Kernel.elu1: lambda x: torch.nn.functional.elu(x) + 1,
}


def projection(features: int = FEATURES, width: int = WIDTH, *, seed: int = 1, **options) -> Tensor:
    return draw_projection(features, width, torch.Generator().manual_seed(seed), **options)


def positive(x, W):
    """phi(x) = exp(W x - |x|^2 / 2) / sqrt(m), of x already scaled."""
    return torch.exp(x @ W.mT - x.square().sum(-1, keepdim=True) / 2) / math.sqrt(W.shape[-2])


def hyperbolic(x, W):
    """phi(x) = [exp(W x), exp(-W x)] exp(-|x|^2 / 2) / sqrt(2 m)."""
    return torch.cat((positive(x, W), positive(x, -W)), dim=-1) / math.sqrt(2)


def trigonometric(x, W):
    """phi(x) = [cos W x, sin W x] exp(|x|^2 / 2) / sqrt(m)."""
    wave = torch.cat(((x @ W.mT).cos(), (x @ W.mT).sin()), dim=-1) / math.sqrt(W.shape[-2])
    return wave * torch.exp(x.square().sum(-1, keepdim=True) / 2)


ESTIMATES = {
    Kernel.softmax: positive,
    Kernel.hyperbolic: hyperbolic,
    Kernel.trigonometric: trigonometric,
}


def features(x, W, kernel: Kernel):
    """Return phi of x not yet scaled."""
    x = W.shape[-1] ** -0.25 * x
    if kernel in ESTIMATES:
        return ESTIMATES[kernel](x, W)
    return FUNCTIONS[kernel](x @ W.mT) + EPSILON


def dense(q, k, v, W, kernel, *, keep=None, causal=False):
    """The paper's estimate, with the whole matrix of weights."""
    weights = features(q, W, kernel) @ features(k, W, kernel).mT
    return mean(weights, v, keep=keep, causal=causal)


def make(causal: bool = False, **options) -> Performer:
    """Return a small mixer, always with the same draws."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        site = Site(
            width=16, heads=2, max_length=64, causal=causal,
            generator=torch.Generator().manual_seed(0),
        )  # fmt: skip
        return Performer(site, **options).double()
