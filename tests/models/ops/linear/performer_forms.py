"""Draws, kernels and small mixers for the tests of the Performer."""

import torch
from torch import Tensor

from lra.models.families.performer import Performer, draw_projection
from tests.attention import builder
from tests.models.ops.linear.feature_forms import WIDTH

FEATURES = 11


def projection(features: int = FEATURES, width: int = WIDTH, *, seed: int = 1, **options) -> Tensor:
    return draw_projection(features, width, torch.Generator().manual_seed(seed), **options)


def make(causal: bool = False, **options) -> Performer:
    return builder(Performer, width=16, heads=2, causal=causal)(**options)
