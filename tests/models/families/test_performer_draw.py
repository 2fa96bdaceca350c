"""Performer: the draw against its theory, and the mixer around it."""

import math

import pytest
import torch
from performer_forms import (
    DIRECTIONS,
    attend,
    draw,
    positive,
    projection,
)
from torch import Tensor

from models.families.linear import Exponential
from models.families.performer import (
    Kernel,
    Norms,
    Performer,
    SoftmaxFeatures,
    draw_projection,
    performer_maps,
)
from models.mixer import AfterStep, Flow, Layout, Site, Unsupported

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
    for _ in range(400):
        W = draw_projection(width, width, generator, **options)
        means.append(torch.nn.functional.normalize(W, dim=1).diagonal().mean())
    return torch.stack(means)


def test_the_sign_fix_makes_rotations_uniform():
    fixed, raw = diagonal_means(), diagonal_means(qr_sign_fix=False)
    assert abs(fixed.mean()) < 4 * fixed.std() / math.sqrt(len(fixed))
    assert raw.mean() < -0.05, "Householder QR leaves its signs: the test cannot see the fix"


def draws(count: int, features: int, width: int, **options) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.stack(
        [draw_projection(features, width, generator, **options) for _ in range(count)]
    )


@pytest.mark.parametrize("orthogonal", [False, True])
def test_the_estimate_of_the_kernel_is_unbiased(orthogonal):
    generator = torch.Generator().manual_seed(2)
    x, y = (0.3 * torch.randn(8, generator=generator, dtype=torch.float64) for _ in range(2))
    estimates = torch.stack(
        [
            (positive(x[None], W) * positive(y[None], W)).sum()
            for W in draws(1000, 8, 8, orthogonal=orthogonal)
        ]
    )
    error = estimates.std() / math.sqrt(len(estimates))
    assert abs(estimates.mean() - torch.exp(x @ y)) < 4 * error


def kernel_errors(features: int, *, width: int = 16, count: int = 20, **options) -> Tensor:
    """Squared errors of the estimate of exp(x y), averaged over pairs of short vectors, by draw."""
    generator = torch.Generator().manual_seed(3)
    shape = (64, width)
    x, y = (0.25 * torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    W = draws(count, features, width, **options)
    estimates = (positive_all(x, W) * positive_all(y, W)).sum(-1)
    return (estimates - (x * y).sum(-1).exp()).square().mean(-1)


def positive_all(x: Tensor, W: Tensor) -> Tensor:
    """phi(x) for every draw of W."""
    return torch.stack([positive(x, each) for each in W])


@pytest.mark.parametrize("orthogonal", [False, True])
def test_the_error_falls_as_one_over_the_features(orthogonal):
    sizes = [16, 64, 256, 1024, 4096]
    errors = [kernel_errors(m, orthogonal=orthogonal).mean().item() for m in sizes]
    x = torch.tensor(sizes).log()
    y = torch.tensor(errors).log()
    slope = ((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum()
    assert slope.item() == pytest.approx(-1, abs=0.12)


def test_the_error_of_independent_rows_has_the_predicted_size():
    """MSE = exp(|x + y|^2) exp(x y)^2 (1 - exp(-|x + y|^2)) / m for independent Gaussian rows."""
    generator = torch.Generator().manual_seed(3)
    x, y = (0.25 * torch.randn(64, 16, generator=generator, dtype=torch.float64) for _ in range(2))
    square = (x + y).square().sum(-1)
    predicted = square.exp() * (2 * (x * y).sum(-1)).exp() * (1 - (-square).exp()) / 256
    errors = kernel_errors(256, orthogonal=False)
    spread = errors.std() / math.sqrt(len(errors))
    assert abs(errors.mean() - predicted.mean()) < 4 * spread


def test_the_module_features_are_those_of_the_theory():
    """The factors that the module leaves out cancel: ratios of products are ratios of kernels."""
    x, y = torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    W = projection(64, 16)
    phi, _ = SoftmaxFeatures(W, 16**-0.25, keys=False)(x)
    psi, log = SoftmaxFeatures(W, 16**-0.25, keys=True)(y)
    weights = (phi @ psi.mT) * log.exp()
    wanted = positive(16**-0.25 * x, W) @ positive(16**-0.25 * y, W).mT
    torch.testing.assert_close(
        weights / weights.sum(-1, keepdim=True), wanted / wanted.sum(-1, keepdim=True)
    )


def test_attention_approaches_softmax():
    q, k, v = (0.5 * x.detach() for x in draw(30))
    exact = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    errors = [
        (attend(q, k, v, performer_maps(projection(m)), causal=False) - exact).square().mean()
        for m in (10, 40_000)
    ]
    assert errors[1] < 1e-3 * errors[0]
    assert errors[1] < 2e-6


# the mixer


def make(causal: bool = False, **options) -> Performer:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        site = Site(
            width=16, heads=2, max_length=64, causal=causal,
            generator=torch.Generator().manual_seed(0),
        )  # fmt: skip
        return Performer(site, **options).double()


def test_redrawing_changes_only_the_buffer_and_repeats():
    mixer, twin = make(redraw_every=3), make(redraw_every=3)
    assert isinstance(mixer, AfterStep)
    before = {name: value.clone() for name, value in mixer.state_dict().items()}

    for step in (1, 2):
        mixer.after_step(step, torch.Generator().manual_seed(step))
    assert all(torch.equal(value, before[name]) for name, value in mixer.state_dict().items())

    state = torch.get_rng_state()
    mixer.after_step(3, torch.Generator().manual_seed(3))
    twin.after_step(3, torch.Generator().manual_seed(3))
    assert torch.equal(torch.get_rng_state(), state)
    changed = [n for n, value in mixer.state_dict().items() if not torch.equal(value, before[n])]
    assert changed == ["core.projection"]
    assert torch.equal(mixer.core.projection, twin.core.projection)


def test_redrawing_can_be_off():
    mixer = make(redraw_every=0)
    before = mixer.core.projection.clone()
    mixer.after_step(1000, torch.Generator())
    assert torch.equal(mixer.core.projection, before)


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


def test_the_draw_comes_from_the_site_alone():
    first, second = make(), make()
    assert torch.equal(first.core.projection, second.core.projection)
    assert "core.projection" in first.state_dict()
    assert "core.projection" not in dict(first.named_parameters())


def test_the_mixer_extends_its_own_state():
    mixer = make(causal=True, chunk=4)
    x = torch.randn(2, 24, 16, dtype=torch.float64)
    state, outputs = mixer.initial_state(2, 24), []
    for part in x.split([7, 1, 16], dim=1):
        flow = mixer.extend(Flow(part, state), Layout())
        state = flow.state
        outputs.append(flow.x)
    torch.testing.assert_close(torch.cat(outputs, 1), mixer(x, Layout()), rtol=1e-11, atol=1e-12)


def test_it_builds_and_runs_on_the_meta_device():
    with torch.device("meta"):
        site = Site(width=16, heads=2, max_length=64, causal=True)
        mixer = Performer(site)
        assert mixer.core.projection.is_meta
        assert mixer(torch.empty(2, 63, 16), Layout()).shape == (2, 63, 16)


def test_features_none_takes_k_ln_k():
    assert make(features=None).core.projection.shape == (round(8 * math.log(8)), 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": 0}, "got 0"),
        ({"redraw_every": -1}, "got -1"),
        ({"feature_epsilon": -0.1}, "got feature_epsilon=-0.1"),
        ({"renormalise": False}, "kernel=relu"),
        ({"chunk": 0}, "got 0"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


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
        SoftmaxFeatures(torch.eye(5, dtype=torch.float64), 1.0, keys=False)(x)[0], plain
    )


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # dynamo does
@DIRECTIONS
def test_it_compiles_as_one_graph(causal):
    mixer = make(causal, features=12)
    x = torch.randn(2, 50, 16, dtype=torch.float64)
    compiled = torch.compile(lambda x: mixer(x, Layout()), fullgraph=True, backend="aot_eager")
    compiled(x).square().sum().backward()
    found, mixer.q_proj.weight.grad = mixer.q_proj.weight.grad, None
    mixer(x, Layout()).square().sum().backward()
    torch.testing.assert_close(found, mixer.q_proj.weight.grad)
