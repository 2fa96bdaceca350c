"""Draws, kernels and small mixers for the tests of the Performer."""

import pytest
import torch
from torch import Tensor

from lra.models.families.performer import Kernel, Performer, draw_projection
from tests.attention import builder
from tests.literal.features import (
    GENERALISED_KERNELS,
    SOFTMAX_KERNELS,
    linear_attention,
    performer_features,
)
from tests.models.ops.linear.feature_forms import WIDTH

MAIN = [Kernel.softmax, Kernel.trigonometric, Kernel.relu]
"""One kernel of each kind of feature map."""
KERNELS = pytest.mark.parametrize("kernel", MAIN)
FEATURES = 11
FUNCTIONS = {Kernel(name): f for name, f in GENERALISED_KERNELS.items()}
ESTIMATES = {Kernel(name): f for name, f in SOFTMAX_KERNELS.items()}


def projection(features: int = FEATURES, width: int = WIDTH, *, seed: int = 1, **options) -> Tensor:
    return draw_projection(features, width, torch.Generator().manual_seed(seed), **options)


def dense(q, k, v, W, kernel, *, keep=None, causal=False):
    """The paper's estimate, with the whole matrix of weights."""
    phi_q, phi_k = (performer_features(x, W, kernel) for x in (q, k))
    return linear_attention(phi_q, phi_k, v, keep=keep, causal=causal)


def make(causal: bool = False, **options) -> Performer:
    return builder(Performer, width=16, heads=2, causal=causal)(**options)
