"""Performer: the product against dense FAVOR+ of the same draw, and the draw against its theory."""

import math

import pytest
import torch
from torch import Tensor

from models.families import feature_product as blocked
from models.families.causal_product import causal_product
from models.families.feature_product import FeatureMaps, feature_product
from models.families.linear import Exponential
from models.families.performer import (
    Kernel,
    Norms,
    Performer,
    SoftmaxFeatures,
    draw_projection,
    performer_maps,
)
from models.flops import count_operations, pretending, saved_bytes
from models.mixer import AfterStep, Flow, Layout, Site, Unsupported

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


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of a few rows, so that short inputs cross their borders."""
    monkeypatch.setattr(blocked, "CPU_BLOCK", 1)
    monkeypatch.setattr(blocked, "MINIMUM_ROWS", 16)


@DIRECTIONS
@KERNELS
@pytest.mark.parametrize("length", [1, 2, 63, 101])
@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.usefixtures("small_blocks")
def test_outputs_and_gradients_equal_the_dense_estimate(kernel, length, padded, causal):
    q, k, v = draw(length)
    W, keep = projection(), None
    if padded:
        keep = torch.rand(2, length, generator=torch.Generator().manual_seed(3)) > 0.3
        keep[0, : length // 3] = False  # rows that find nothing when causal
    compare(
        lambda: attend(q, k, v, performer_maps(W, kernel), causal=causal, keep=keep),
        lambda: dense(q, k, v, W, kernel, keep=keep, causal=causal),
        (q, k, v),
    )


@KERNELS
@pytest.mark.parametrize("chunk", [1, 3, 16, 37, 64])
@pytest.mark.parametrize("rows", [1, 1000])
def test_chunk_and_block_never_change_the_result(kernel, chunk, rows, monkeypatch):
    monkeypatch.setattr(blocked, "CPU_BLOCK", 1)
    monkeypatch.setattr(blocked, "MINIMUM_ROWS", rows)
    (q, k, v), W = draw(37), projection()
    compare(
        lambda: attend(q, k, v, performer_maps(W, kernel), causal=True, chunk=chunk),
        lambda: dense(q, k, v, W, kernel, causal=True),
        (q, k, v),
    )


@DIRECTIONS
@KERNELS
def test_gradcheck(kernel, causal):
    q, k, v = (x[:1, :1, :, :2].detach().requires_grad_() for x in draw(6, seed=4))
    keep = torch.tensor([[False, True, False, True, True, True]])
    maps = performer_maps(projection(3, 2), kernel)

    def run(*inputs):
        return attend(*inputs, maps, causal=causal, keep=keep, chunk=4)

    assert torch.autograd.gradcheck(run, (q, k, v))


@DIRECTIONS
@KERNELS
def test_weights_are_a_mean_and_an_empty_row_is_zero(kernel, causal):
    (q, k, v), maps = draw(63), performer_maps(projection(), kernel)
    keep = torch.ones(2, 63, dtype=torch.bool)
    keep[0] = False
    out = attend(q, k, torch.ones_like(v), maps, causal=causal, keep=keep)
    assert not out[0].any()
    torch.testing.assert_close(out[1], torch.ones_like(out[1]), rtol=0, atol=1e-13)
    for gradient in torch.autograd.grad(out.square().sum(), (q, k)):
        assert not gradient[0].any()
        assert gradient.isfinite().all()


@KERNELS
def test_a_later_outlier_moves_nothing_before_it(kernel):
    (q, k, v), maps = [x.detach() for x in draw(40)], performer_maps(projection(), kernel)
    before = attend(q, k, v, maps, causal=True, chunk=16)
    for x in (q, k, v):
        x[:, :, 25:] *= 6
    after = attend(q, k, v, maps, causal=True, chunk=16)
    assert torch.equal(before[:, :, :25], after[:, :, :25])
    assert not torch.equal(before[:, :, 25:], after[:, :, 25:])


@KERNELS
def test_a_prefix_alone_gives_the_same(kernel):
    (q, k, v), maps = [x.detach() for x in draw(40)], performer_maps(projection(), kernel)
    whole = attend(q, k, v, maps, causal=True, chunk=16)
    for length in (1, 15, 16, 17, 39):
        short = attend(*(x[:, :, :length] for x in (q, k, v)), maps, causal=True, chunk=16)
        torch.testing.assert_close(short, whole[:, :, :length], rtol=1e-12, atol=1e-13)


@KERNELS
@pytest.mark.parametrize("sizes", [[24], [1] * 24, [5, 1, 11, 7], [23, 1]])
def test_any_partition_equals_one_pass_with_gradients(kernel, sizes):
    (q, k, v), W = draw(24), projection()
    maps = performer_maps(W, kernel)

    def pieces():
        memory, outputs = None, []
        for parts in zip(*(x.split(sizes, dim=2) for x in (q, k, v)), strict=True):
            o, memory = causal_product(*parts, maps, chunk=4, memory=memory)
            outputs.append(o)
        return torch.cat(outputs, dim=2)

    compare(pieces, lambda: dense(q, k, v, W, kernel, causal=True), (q, k, v))


@KERNELS
def test_chunks_equal_the_recurrence(kernel):
    (q, k, v), W = draw(21), projection()
    scale = WIDTH**-0.25

    def recurrent():
        if kernel is Kernel.softmax:
            phi_q, phi_k = positive(scale * q, W), positive(scale * k, W)
        else:
            phi_q, phi_k = ((scale * x @ W.T).relu() + EPSILON for x in (q, k))
        S, z, outputs = 0, 0, []
        for q_i, k_i, v_i in zip(phi_q.unbind(2), phi_k.unbind(2), v.unbind(2), strict=True):
            S, z = S + k_i[..., None] * v_i[..., None, :], z + k_i
            outputs.append((q_i[..., None, :] @ S)[..., 0, :] / (q_i * z).sum(-1, True))
        return torch.stack(outputs, dim=2)

    compare(lambda: attend(q, k, v, performer_maps(W, kernel), causal=True), recurrent, (q, k, v))


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
def test_half_precision_enters_and_leaves(causal):
    inputs = [x.detach().bfloat16().requires_grad_() for x in draw(300)]
    W = projection()
    out = attend(*inputs, performer_maps(W.float()), causal=causal)
    assert out.dtype == torch.bfloat16
    wanted = attend(*(x.double() for x in inputs), performer_maps(W), causal=causal)
    torch.testing.assert_close(out.double(), wanted, rtol=2**-8, atol=1e-5)
    for gradient in torch.autograd.grad(out.float().square().sum(), inputs):
        assert gradient.dtype == torch.bfloat16
        assert gradient.isfinite().all()


@DIRECTIONS
@KERNELS
def test_operations_and_saved_bytes_grow_as_the_length(kernel, causal, monkeypatch):
    lengths, operations, kept = (8192, 32768), [], []
    monkeypatch.setattr(blocked, "CPU_BLOCK", 2**21)
    for length in lengths:
        with pretending():
            q, k, v = (torch.empty(1, 1, length, 64, requires_grad=True) for _ in range(3))
            maps = performer_maps(torch.empty(256, 64), kernel)

            def step(inputs=(q, k, v), maps=maps):
                attend(*inputs, maps, causal=causal, chunk=512).sum().backward()

            def forward(inputs=(q, k, v), maps=maps):
                attend(*inputs, maps, causal=causal, chunk=512)

            operations.append(count_operations(step))
            kept.append(saved_bytes(forward, exclude=(q, k, v)))
    ratio = math.log(lengths[1] / lengths[0])
    assert math.log(operations[1] / operations[0]) / ratio == pytest.approx(1, abs=0.02)
    assert math.log(kept[1] / kept[0]) / ratio == pytest.approx(1, abs=0.02)
    # Far below the features of queries and keys, which would be 8 times the output.
    assert kept[1] < 2 * 4 * lengths[1] * 64


def test_relu_features_without_projection_equal_the_linear_family():
    q, k, v = draw(30)
    maps = performer_maps(torch.eye(WIDTH, dtype=torch.float64), Kernel.relu)
    scale = WIDTH**-0.25
    phi_q, phi_k = ((scale * x).relu() + EPSILON for x in (q, k))
    weights = phi_q @ phi_k.mT
    compare(
        lambda: feature_product(q, k, v, maps),
        lambda: weights @ v / weights.sum(-1, keepdim=True),
        (q, k, v),
    )


def test_unnormalised_relu_attention():
    (q, k, v), W = draw(30), projection()
    phi_q, phi_k = ((WIDTH**-0.25 * x @ W.T).relu() + EPSILON for x in (q, k))
    maps = performer_maps(W, Kernel.relu, normalise=False)
    compare(
        lambda: attend(q, k, v, maps, causal=True),
        lambda: (phi_q @ phi_k.mT).tril() @ v,
        (q, k, v),
    )


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
