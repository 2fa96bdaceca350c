"""Performer: the draw against its theory, and how the mixer draws again."""

import math
from functools import cache

import pytest
import torch
from torch import Tensor

from lra.models.families.linear import Exponential
from lra.models.families.performer import Kernel, Norms, draw_projection, performer_maps
from lra.models.mixer import Layout, Unsupported
from lra.models.ops.linear.random_features import PositiveFeatures
from tests.literal.features import performer_features as features
from tests.models.ops.linear.feature_forms import attend, draw
from tests.models.ops.linear.performer_forms import ESTIMATES, make, projection

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


@cache
def draws(count: int, features: int, width: int, **options) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.stack(
        [draw_projection(features, width, generator, **options) for _ in range(count)]
    )


ESTIMATORS = pytest.mark.parametrize("kernel", list(ESTIMATES))
ORTHOGONAL = pytest.mark.parametrize("orthogonal", [False, True], ids=["independent", "orthogonal"])


@cache
def pairs(count: int, width: int, *, size: float = 0.25) -> tuple[Tensor, Tensor]:
    """Return short vectors: for long ones the estimates are too heavy-tailed to be tested."""
    generator = torch.Generator().manual_seed(3)
    shape = (2, count, width)
    x, y = size * torch.randn(shape, generator=generator, dtype=torch.float64)
    return x, y


def kernel_errors(
    kernel: Kernel, features: int, *, count: int = 20, size: float = 0.25, **options
) -> Tensor:
    """Return errors of the estimate of exp(x y), by draw and pair."""
    x, y = pairs(16, 16, size=size)
    W, phi = draws(count, features, 16, **options), ESTIMATES[kernel]
    return (phi(x, W) * phi(y, W)).sum(-1) - (x * y).sum(-1).exp()


@ESTIMATORS
@ORTHOGONAL
def test_the_estimate_of_the_kernel_is_unbiased(kernel, orthogonal):
    errors = kernel_errors(kernel, 16, count=300, orthogonal=orthogonal).mean(-1)
    assert abs(errors.mean()) < 4 * errors.std() / math.sqrt(len(errors))


@ESTIMATORS
@ORTHOGONAL
def test_the_error_falls_as_one_over_the_features(kernel, orthogonal):
    sizes = [16, 256, 4096]
    errors = [kernel_errors(kernel, m, orthogonal=orthogonal).square().mean().item() for m in sizes]
    x = torch.tensor(sizes).log()
    y = torch.tensor(errors).log()
    slope = ((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum()
    assert slope.item() == pytest.approx(-1, abs=0.12)


def predicted(kernel: Kernel, x: Tensor, y: Tensor, features: int) -> Tensor:
    """Return the paper's mean squared error of independent rows."""
    sums, differences = (x + y).square().sum(-1), (x - y).square().sum(-1)
    softmax = (x * y).sum(-1).exp()
    if kernel is Kernel.trigonometric:
        return sums.exp() / softmax**2 * (1 - (-differences).exp()) ** 2 / (2 * features)
    error = sums.exp() * softmax**2 * (1 - (-sums).exp()) / features
    return error * (1 - (-sums).exp()) / 2 if kernel is Kernel.hyperbolic else error


@ESTIMATORS
def test_the_error_of_independent_rows_has_the_predicted_size(kernel):
    found = kernel_errors(kernel, 256, count=200, size=0.125, orthogonal=False).square().mean(-1)
    wanted = predicted(kernel, *pairs(16, 16, size=0.125), 256).mean()
    assert abs(found.mean() - wanted) < 4 * found.std() / math.sqrt(len(found))
    assert found.std() / math.sqrt(len(found)) < 0.1 * wanted, "too noisy to tell"


def test_orthogonal_rows_lower_the_error_of_positive_features_as_predicted():
    x, y = pairs(16, 16)
    squares = x.square().sum(-1) + y.square().sum(-1)
    softmax = (x * y).sum(-1).exp()
    gain = 2 * 15 / (16 * 18) * (softmax - (-squares / 2).exp()) ** 2
    bound = (predicted(Kernel.softmax, x, y, 16) - gain).mean()
    found = kernel_errors(Kernel.softmax, 16, count=300).square().mean(-1)
    assert found.mean() - 4 * found.std() / math.sqrt(len(found)) < bound


def test_hyperbolic_features_are_better_than_positive_ones():
    positive, hyperbolic = (
        kernel_errors(kernel, 64, count=50, size=0.125).square().mean()
        for kernel in (Kernel.softmax, Kernel.hyperbolic)
    )
    assert positive > 4 * hyperbolic


@ESTIMATORS
def test_the_module_features_are_those_of_the_theory(kernel):
    """The factors that the module leaves out cancel: ratios of products are ratios of kernels."""
    x, y = torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    W = projection(64, 16)
    maps = performer_maps(W, kernel)
    phi, none = maps.query(x)
    psi, log = maps.key(y)
    assert none is None
    assert phi.shape[-1] == maps.width
    weights = (phi @ psi.mT) * log.exp()
    wanted = features(x, W, kernel) @ features(y, W, kernel).mT
    torch.testing.assert_close(
        weights / weights.sum(-1, keepdim=True), wanted / wanted.sum(-1, keepdim=True)
    )


def test_attention_approaches_softmax():
    q, k, v = (0.5 * x.detach() for x in draw(30))
    exact = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    errors = [
        (attend(q, k, v, performer_maps(projection(m)), causal=False) - exact).square().mean()
        for m in (10, 20_000)
    ]
    assert errors[1] < 1e-3 * errors[0]
    assert errors[1] < 2e-6


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
