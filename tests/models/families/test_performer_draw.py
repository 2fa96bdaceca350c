"""Performer: the draw against its theory, and how the mixer draws again."""

import math

import pytest
import torch
from torch import Tensor

from lra.models.families.linear import Exponential
from lra.models.families.performer import Kernel, Norms, draw_projection
from lra.models.mixer import Layout, Unsupported
from lra.models.ops.linear.random_features import PositiveFeatures
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


def test_redrawing_after_forward_leaves_its_backward_alone():
    mixer = make(redraw_every=1)
    x = torch.randn(1, 9, 16, dtype=torch.float64)
    gradients = []
    for redraw in (False, True):
        twin = make(redraw_every=1)
        loss = twin(x, Layout()).square().sum()
        if redraw:
            with torch.no_grad():
                twin.after_step(1, torch.Generator().manual_seed(5))
        loss.backward()
        gradients.append(twin.q_proj.weight.grad)
    assert torch.equal(*gradients)
    assert gradients[0].any(), mixer


def test_features_none_takes_k_ln_k():
    assert make(features=None).core.projection.shape == (round(8 * math.log(8)), 8)


def test_traits_say_what_the_instance_does():
    assert make().traits.row_stochastic
    assert not make(kernel=Kernel.relu, renormalise=False).traits.row_stochastic
    assert make(causal=True).traits.causal
    with pytest.raises(Unsupported, match="causal"):
        make().initial_state(1, 8)


def test_exponential_features_are_the_performer_without_projection_and_norm():
    x = torch.randn(4, 5, dtype=torch.float64)
    plain, _ = Exponential()(x)
    torch.testing.assert_close(
        PositiveFeatures(torch.eye(5, dtype=torch.float64), 1.0, keys=False)(x)[0], plain
    )
