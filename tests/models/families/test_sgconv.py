"""SGConv and LongConv against a double loop and the released layers: values, gradients."""

import re

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lra.models.families.sgconv import SGConv
from lra.models.mixer import Layout
from lra.models.state import size_bytes
from lra.models.tuning import Tuning
from lra.runners.training.optimisers.groups import tunings
from tests.attention import builder, compare, drawn, streamed
from tests.literal.convolutions import long_convolution, piecewise
from tests.models.families.released import long_convolutions as released

WIDTH, SMALLEST, LONGEST = 6, 4, 24
SITE = {"width": WIDTH, "heads": 2, "max_length": LONGEST}
LENGTH = 13
CASES = pytest.mark.parametrize(
    "options",
    [
        {},
        {"decay_min": 1.0, "decay_max": 3.0, "kernels": 2, "mixing": "linear"},
        {"decay": "lag", "init": "cosine", "stretch": 2, "decay_min": 0.5},
        {"smallest": 40},
        {"kernel": "free", "kernels": 2, "threshold": 0.001},
        {"kernel": "free", "threshold": 0.0},
    ],
)
STORED = np.load(released.OUTPUTS)


def built(**options) -> SGConv:
    """Return a mixer with short kernels."""
    small = {} if options.get("kernel") == "free" else {"smallest": SMALLEST}
    return builder(SGConv, **SITE, **small)(**options)


def kernel_of(mixer, options):
    """Return the kernels of all lags, channel by channel."""
    own = mixer.kernel
    if options.get("kernel") == "free":
        least = options["threshold"]
        small = own.values.abs() <= least
        return torch.where(small, 0.0, own.values - least * own.values.sign())
    number, _, width, _ = own.parts.shape
    ends = options.get("decay_min", 2.0), options.get("decay_max", 2.0)
    base = torch.linspace(*ends, width, dtype=torch.float64)
    scale = torch.stack([base ** (number - 1 - piece) for piece in range(number)])
    if options.get("decay") == "lag":
        scale = torch.ones_like(scale)
    kernel = piecewise(own.parts, scale, options.get("stretch", 1))
    if options.get("decay") == "lag":
        kernel = kernel / (torch.arange(kernel.shape[-1]) + 1.0) ** base[:, None]
    return kernel / own.norm


def equations(mixer, options, x):
    """Compute a layer from its parameters, by a double loop."""
    kernels, u = kernel_of(mixer, options), x.mT
    kernels = F.pad(kernels, (0, u.shape[-1]))[..., : u.shape[-1]]
    each = options.get("kernels", 1)
    read = [
        long_convolution(u, *kernels[number::each]) + mixer.skip[number, :, None] * u
        for number in range(each)
    ]
    y = mixer.out_proj(F.gelu(torch.cat(read, dim=1)).mT)
    return y[..., :WIDTH] * y[..., WIDTH:].sigmoid() if mixer.mixing == "glu" else y


@CASES
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [1, SMALLEST - 1, SMALLEST, SMALLEST + 1, 3 * SMALLEST + 5])
def test_it_is_its_double_loop(options, causal, length):
    mixer, x = built(causal=causal, **options), drawn(2, length, WIDTH).requires_grad_()
    wanted = equations(mixer, options, x)
    compare(mixer(x, Layout()), wanted, [x, *mixer.parameters()], atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize(
    ("case", "length"),
    [
        (case, length)
        for case in [*released.SGCONV, *released.LONG_CONV]
        for length in released.lengths(case)
    ],
)
def test_it_is_the_released_layer(case, length):
    given = (released.SGCONV | released.LONG_CONV)[case]
    options = {"kernels": given.get("channels", 1), "causal": "bidirectional" not in given}
    if case in released.LONG_CONV:
        options |= {"kernel": "free", "threshold": given["lam"]}
    else:
        options |= {
            "smallest": given["kernel_dim"],
            "mixing": given.get("postact", "linear"),
            "decay": "lag" if "learnable" in given.get("mode", "") else "piece",
            "stretch": 2 ** given.get("init_scale", 0),
            "decay_min": float(given.get("decay_min", 2)),
            "decay_max": float(given.get("decay_max", 2)),
        }
    mixer = built(max_length=given["l_max"], **options)
    linear = "output_linear.0" if mixer.mixing == "glu" else "output_linear"
    theirs = {f"{linear}.weight": mixer.out_proj.weight, f"{linear}.bias": mixer.out_proj.bias}
    theirs["D"] = mixer.skip
    if case in released.LONG_CONV:
        theirs["kernel.kernel"] = mixer.kernel.values
    else:
        for number in range(len(mixer.kernel.parts)):
            theirs[f"kernel_list.{number}"] = mixer.kernel.parts[number]
    with torch.no_grad():
        for name, parameter in theirs.items():
            parameter.copy_(released.weight(name, tuple(parameter.shape)))
        if case in released.SGCONV:
            norm = mixer.kernel.norm.fill_(1)
            norm.copy_(mixer.kernel(2 * LONGEST).norm(dim=-1, keepdim=True))
    x = released.tokens(length).requires_grad_()
    y = mixer(x, Layout())
    own = dict(mixer.named_parameters())
    gradients = torch.autograd.grad(y, [x, *own.values()], released.direction(length))
    by = dict(zip(["x", *own], gradients, strict=True))
    found = {"y": y.detach(), "x": by["x"], "D": by["skip"]}
    found |= {f"{linear}.{name}": by[f"out_proj.{name}"] for name in ("weight", "bias")}
    if case in released.LONG_CONV:
        found["kernel.kernel"] = by["kernel.values"]
    else:
        found |= {f"kernel_list.{n}": each for n, each in enumerate(by["kernel.parts"])}
    stored = {name for name in STORED if name.startswith(f"sgconv {case}, {length}: ")}
    assert stored == {f"sgconv {case}, {length}: {name}" for name in found}
    for name, value in found.items():
        wanted = torch.from_numpy(STORED[f"sgconv {case}, {length}: {name}"])
        torch.testing.assert_close(value, wanted, atol=1e-12, rtol=1e-10)


def test_a_state_holds_as_much_as_is_said():
    state = built(causal=True).initial_state(2, LENGTH)
    assert size_bytes(state) == 8 * 2 * WIDTH * (LENGTH - 1)


@pytest.mark.parametrize("memory", [1, 2, 5])
def test_a_short_memory_shows_the_last_tokens(memory):
    mixer, x = built(causal=True, max_length=12), drawn(1, 40, WIDTH)
    outputs, _ = streamed(mixer, x, [17, 1, 22], memory)  # further than the kernel
    wanted = mixer(x[:, -memory:], Layout())[:, -1]
    torch.testing.assert_close(outputs[:, -1], wanted, atol=1e-10, rtol=0)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kernels", [1, 3])
def test_parameters_are_those_of_its_paper(causal, kernels):
    mixer, sides = built(causal=causal, kernels=kernels), 1 if causal else 2
    pieces = 1 + 3  # 4, 4, 8 and 16 lags
    kernel = sides * kernels * pieces * WIDTH * SMALLEST
    wanted = kernel + kernels * WIDTH + 2 * WIDTH * (kernels * WIDTH + 1)
    assert sum(parameter.numel() for parameter in mixer.parameters()) == wanted
    free = built(causal=causal, kernels=kernels, kernel="free")
    wanted += sides * kernels * LONGEST * WIDTH - kernel
    assert sum(parameter.numel() for parameter in free.parameters()) == wanted


@pytest.mark.parametrize(
    ("longest", "smallest", "stretch", "pieces", "lags"),
    [(1, 4, 1, 1, 4), (4, 4, 1, 1, 4), (5, 4, 1, 2, 8), (9, 4, 1, 3, 16), (4000, 1, 1, 13, 4096),
     (16384, 64, 2, 8, 16384), (100, 64, 4, 1, 256)],
)  # fmt: skip
def test_pieces_reach_the_longest_input(longest, smallest, stretch, pieces, lags):
    kernel = built(max_length=longest, smallest=smallest, stretch=stretch).kernel
    assert len(kernel.parts) == pieces
    assert kernel(2 * lags).shape[-1] == lags


@pytest.mark.parametrize("options", [{}, {"decay": "lag"}, {"init": "cosine"}])
def test_kernels_start_with_norm_one(options):
    whole = built(**options).kernel(4 * LONGEST)
    torch.testing.assert_close(whole.norm(dim=-1), torch.ones(2, WIDTH).double(), atol=1e-6, rtol=0)


def test_cosines_have_a_frequency_for_each_channel():
    parts = built(init="cosine", smallest=64).kernel.parts[0, 0]
    turns = torch.linspace(0, 2 * torch.pi, 64)
    wanted = torch.stack([(turns * channel).cos() for channel in range(WIDTH)]).double()
    apart = (parts[:, None] - wanted).abs().amax(-1)
    assert sorted(apart.argmin(1).tolist()) == [*range(WIDTH)]
    assert apart.amin(1).max() < 1e-5


def test_a_training_pass_drops_lags_and_outputs():
    torch.manual_seed(0)
    for options in ({"kernel": "free", "kernel_dropout": 0.5}, {"dropout": 0.5}):
        mixer = built(**options, threshold=0.0) if "kernel" in options else built(**options)
        x = drawn(2, LENGTH, WIDTH)
        assert mixer.traits.training_noise
        assert torch.equal(mixer(x, Layout()), mixer(x, Layout()))
        assert not torch.equal(mixer.train()(x, Layout()), mixer(x, Layout()))


@pytest.mark.parametrize(("kernel", "decay"), [("pieces", None), ("free", 0.0)])
def test_the_kernel_learns_slowly(kernel, decay):
    mixer = built(kernel=kernel, rate=0.25)
    names = {parameter: name for name, parameter in mixer.named_parameters()}
    special = {names[parameter]: tuning for parameter, tuning in tunings(mixer)}
    name = "kernel.parts" if kernel == "pieces" else "kernel.values"
    assert special[name] == Tuning(learning_rate_scale=0.25, weight_decay=decay, matrix=False)
    assert special["skip"] == Tuning()


def test_more_tokens_than_lags_are_refused():
    mixer, message = built(causal=True), re.escape(f"up to {LONGEST} tokens: got {LONGEST + 1}")
    with pytest.raises(ValueError, match=message):
        mixer(drawn(1, LONGEST + 1, WIDTH), Layout())
    with pytest.raises(ValueError, match=message):
        mixer.initial_state(1, LONGEST + 1)
