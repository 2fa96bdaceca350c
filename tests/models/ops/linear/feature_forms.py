"""What the tests of attention by features share: inputs, runs and comparison."""

import pytest
import torch
from torch import Tensor

from lra.models.ops.linear.causal_product import causal_product
from lra.models.ops.linear.feature_product import feature_product
from lra.models.ops.linear.features import FeatureMaps
from tests import attention

PADDED = pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
WIDTH = 5


def draw(length: int, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Return q, k, v of two rows and three heads."""
    generator = torch.Generator().manual_seed(seed)
    shape = (2, 3, length, WIDTH)
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for _ in range(3)]


def holes(length: int, *, empty_start: bool = True) -> Tensor:
    """Return padding at random places; the first row begins with it."""
    keep = torch.rand(2, length, generator=torch.Generator().manual_seed(3)) > 0.3
    if empty_start:
        keep[0, : length // 3] = False
    return keep


def attend(q, k, v, maps: FeatureMaps, *, causal, keep=None, chunk=8):
    """Run the product under test."""
    if not causal:
        return feature_product(q, k, v, maps, keep)
    return causal_product(q, k, v, maps, chunk=chunk, keep=keep)[0]


def compare(run, reference, inputs, *, tolerance: float = 1e-11):
    """Compare outputs and gradients."""
    attention.compare(run(), reference(), inputs, atol=0.1 * tolerance, rtol=tolerance, looser=10)
