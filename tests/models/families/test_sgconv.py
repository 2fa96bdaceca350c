"""SGConv and LongConv against the released layers, and how they start and learn."""

import numpy as np
import pytest
import torch

from lra.models.families.sgconv import SGConv
from lra.models.mixer import Layout
from lra.models.tuning import Tuning
from lra.runners.training.optimisers.groups import tunings
from tests.attention import builder, drawn, streamed
from tests.models.families.released import long_convolutions as released

WIDTH, SMALLEST, LONGEST = 6, 4, 24
SITE = {"width": WIDTH, "heads": 2, "max_length": LONGEST}
STORED = np.load(released.OUTPUTS)


def built(**options) -> SGConv:
    """Return a mixer with short kernels."""
    small = {} if options.get("kernel") == "free" else {"smallest": SMALLEST}
    return builder(SGConv, **SITE, **small)(**options)


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


@pytest.mark.parametrize("memory", [1, 2, 5])
def test_a_short_memory_shows_the_last_tokens(memory):
    mixer, x = built(causal=True, max_length=12), drawn(1, 40, WIDTH)
    outputs, _ = streamed(mixer, x, [17, 1, 22], memory)  # further than the kernel
    wanted = mixer(x[:, -memory:], Layout())[:, -1]
    torch.testing.assert_close(outputs[:, -1], wanted, atol=1e-10, rtol=0)


@pytest.mark.parametrize(
    ("longest", "smallest", "stretch", "pieces", "lags"),
    [(1, 4, 1, 1, 4), (4, 4, 1, 1, 4), (5, 4, 1, 2, 8), (9, 4, 1, 3, 16), (4000, 1, 1, 13, 4096),
     (16384, 64, 2, 8, 16384), (100, 64, 4, 1, 256)],
)  # fmt: skip
def test_pieces_reach_the_longest_input(longest, smallest, stretch, pieces, lags):
    kernel = built(max_length=longest, smallest=smallest, stretch=stretch).kernel
    assert len(kernel.parts) == pieces
    assert kernel(2 * lags).shape[-1] == lags


def test_cosines_have_a_frequency_for_each_channel():
    parts = built(init="cosine", smallest=64).kernel.parts[0, 0]
    turns = torch.linspace(0, 2 * torch.pi, 64)
    wanted = torch.stack([(turns * channel).cos() for channel in range(WIDTH)]).double()
    apart = (parts[:, None] - wanted).abs().amax(-1)
    assert sorted(apart.argmin(1).tolist()) == [*range(WIDTH)]
    assert apart.amin(1).max() < 1e-5


@pytest.mark.parametrize(("kernel", "decay"), [("pieces", None), ("free", 0.0)])
def test_the_kernel_learns_slowly(kernel, decay):
    mixer = built(kernel=kernel, rate=0.25)
    names = {parameter: name for name, parameter in mixer.named_parameters()}
    special = {names[parameter]: tuning for parameter, tuning in tunings(mixer)}
    name = "kernel.parts" if kernel == "pieces" else "kernel.values"
    assert special[name] == Tuning(learning_rate_scale=0.25, weight_decay=decay, matrix=False)
    assert special["skip"] == Tuning()
