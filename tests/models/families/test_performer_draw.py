"""Performer: the draw against its theory."""

import math

import pytest
import torch
from torch import Tensor

from lra.models.families.performer import Norms, draw_projection
from tests.models.ops.linear.performer_forms import make, projection

# the draw


@pytest.mark.parametrize("features", [4, 8, 20])
@pytest.mark.parametrize("norms", list(Norms))
def test_rows_of_one_block_are_orthogonal(features, norms):
    W = projection(features, 8, norms=norms)
    assert W.shape == (features, 8)
    for block in W.split(8):
        product = block @ block.T
        assert (product - product.diagonal().diag()).abs().max() < 1e-12
    lengths = W.norm(dim=1)
    if norms is Norms.sqrt_width:
        torch.testing.assert_close(lengths, torch.full_like(lengths, math.sqrt(8)))
    else:
        assert lengths.std() > 0


def test_chi_norms_have_the_moments_of_gaussian_rows():
    W = projection(16 * 500, 16)
    squares = W.square().sum(1)  # chi-squared with 16 degrees: mean 16, variance 32
    assert squares.mean().item() == pytest.approx(16, abs=4 * math.sqrt(32 / len(W)))
    assert squares.var().item() == pytest.approx(32, rel=0.1)


def diagonal_means(**options) -> Tensor:
    width = 16
    generator = torch.Generator().manual_seed(0)
    means = []
    for _ in range(150):
        W = draw_projection(width, width, generator, **options)
        means.append(torch.nn.functional.normalize(W, dim=1).diagonal().mean())
    return torch.stack(means)


def test_the_sign_fix_makes_rotations_uniform():
    fixed, raw = diagonal_means(), diagonal_means(qr_sign_fix=False)
    assert abs(fixed.mean()) < 4 * fixed.std() / math.sqrt(len(fixed))
    assert raw.mean() < -0.05, "Householder QR leaves its signs: the test cannot see the fix"


# the mixer


def test_features_none_takes_k_ln_k():
    assert make(features=None).core.projection.shape == (round(8 * math.log(8)), 8)
