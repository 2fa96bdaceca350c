"""S4, S4D and DSS against their released code; sizes, dropout, precision, learning rates."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lra.models.families.s4 import S4
from lra.models.mixer import Flow, Layout, Site
from lra.models.tuning import Tuning
from lra.runners.training.optimisers.groups import tunings
from tests.attention import builder, drawn
from tests.models.families.released import s4 as released

SITE = {"width": 6, "heads": 2, "max_length": 32}
LENGTH = 13
STORED = np.load(released.OUTPUTS)


built = builder(S4, **SITE, states=8)


def counted(mixer):
    return sum(parameter.numel() for parameter in mixer.parameters())


@pytest.mark.parametrize(
    ("kernel", "width", "states", "number", "wanted"),
    [
        ("dplr", 256, 4, 1, 134_156),
        ("dplr", 512, 64, 1, 592_064),
        ("dplr", 256, 64, 256, 214_016),
        ("diagonal", 256, 64, 256, 197_632),
        ("dss_exp", 256, 64, 256, 197_632 - 256 * 64),
    ],
)
def test_parameters_are_as_many_as_of_the_released_layer(kernel, width, states, number, wanted):
    """The first four as its own module counts them."""
    assert counted(built(width=width, kernel=kernel, states=states, independent=number)) == wanted


def test_large_inputs_are_cut_where_asked():
    entry = built(states=64, input_limit=2.0).dynamics.entry
    whole = built(states=64).dynamics.entry
    assert 40 < whole.max() < 41
    assert entry.max() == 2.0
    torch.testing.assert_close(entry[whole < 2], whole[whole < 2])
    cut, free = (built(states=64, kernel="dplr", input_limit=x).dynamics for x in (2.0, None))
    assert torch.equal(cut.low_rank, free.low_rank)
    assert torch.equal(cut.entry, entry)


@pytest.mark.parametrize("tied", [True, False])
def test_dropout_is_of_channels_or_of_numbers(tied):
    mixer = built(dropout=0.5, tied_dropout=tied, mixing="linear").train()
    with torch.no_grad():
        torch.nn.init.eye_(mixer.out_proj.weight)
    dropped = mixer(drawn(2, LENGTH, 6), Layout()) == 0
    assert dropped.any()
    assert tied == (dropped.all(1) == dropped.any(1)).all()


def test_convolution_dropout_is_before_the_activation():
    mixer, x = built(convolution_dropout=0.5, mixing="linear"), drawn(2, LENGTH, 6)
    with torch.no_grad():
        torch.nn.init.eye_(mixer.out_proj.weight)
        (read,), _ = mixer.read(x, None, None)
        y = mixer.train()(x, Layout())
    kept = y != 0
    assert 0.3 < kept.double().mean() < 0.7
    torch.testing.assert_close(y[kept], F.gelu(2 * (read + mixer.skip * x))[kept])
    assert mixer.traits.training_noise


def test_steps_are_log_uniform_between_their_ends():
    parts = built(width=512, step_min=0.01, step_max=0.04).dynamics
    steps = parts.middle + parts.log_step
    assert math.log(0.01) <= steps.min() < math.log(0.011)
    assert math.log(0.038) < steps.max() <= math.log(0.04)


@pytest.mark.parametrize("kernel", ["diagonal", "dss_exp"])
def test_a_long_kernel_in_float32_has_no_error_of_phases(kernel):
    """A phase turns by dt Im A at each token, and its error by as many times: 1e-4 at 4,096."""
    torch.manual_seed(0)
    mixer = S4(Site(width=16, heads=2, max_length=4096, causal=True), kernel=kernel)
    pulse = torch.zeros(1, 16, 4096)
    pulse[..., 0] = 1
    with torch.no_grad():
        rounded, exact = (
            mixer.dynamics(pulse.to(dtype), torch.view_as_complex(mixer.readout.to(dtype)), None)[0]
            for dtype in (torch.float32, torch.float64)
        )
    assert (rounded - exact).norm() < (3e-5 if kernel == "diagonal" else 8e-6) * exact.norm()


def test_dynamics_learn_slowly_and_do_not_decay():
    mixer = built(kernel="dplr", rate=0.2, rate_of_step=0.3, rate_of_readout=0.4)
    names = {parameter: name for name, parameter in mixer.named_parameters()}
    said = {names[parameter]: tuning for parameter, tuning in tunings(mixer)}
    rates = dict.fromkeys(("log_decay", "frequency", "entry", "low_rank"), 0.2)
    for name, rate in (rates | {"log_step": 0.3}).items():
        tuning = said[f"dynamics.{name}"]
        assert (tuning.learning_rate_scale, tuning.weight_decay) == (rate, 0.0)
    assert said["readout"] == Tuning(learning_rate_scale=0.4)
    assert said["skip"] == Tuning()


def as_released(case):
    """Return a mixer with the weights of a released block, whose Lambda are the conjugates."""
    options = dict(released.CASES[case])
    kernel = {"dplr": "dplr", "diag": "diagonal"}[options["mode"]]
    rule = {"discretisation": options["disc"]} if kernel == "diagonal" else {}
    mixer = built(
        width=released.WIDTH, states=released.STATES, independent=released.NUMBER, kernel=kernel,
        causal="bidirectional" not in options, **rule,
    )  # fmt: skip
    given, parts = released.weights(len(mixer.readout)), mixer.dynamics
    places = {
        "log_decay": given["A_real"], "frequency": -given["A_imag"], "entry": given["B"][0],
        "low_rank": given["P"][0], "log_step": given["inv_dt"][:, 0] - parts.middle,
    }  # fmt: skip
    with torch.no_grad():
        for name, parameter in parts.named_parameters():
            parameter.copy_(places[name])
        mixer.readout.copy_(given["C"])
        mixer.skip.copy_(given["D"][0])
        mixer.out_proj.weight.copy_(given["weight"])
        mixer.out_proj.bias.copy_(given["bias"])
    return mixer


@pytest.mark.parametrize("case", released.CASES)
@pytest.mark.parametrize("length", released.LENGTHS)
def test_it_answers_as_the_released_block(case, length):
    mixer, x = as_released(case), released.tokens(length).requires_grad_()
    y, found = mixer(x, Layout()), {}
    leaves = (x, mixer.dynamics.entry)
    found["x"], found["B"] = torch.autograd.grad(y, leaves, released.direction(length))
    found["y"] = y
    if mixer.traits.causal:
        state = torch.view_as_real(released.state())
        flow = mixer.extend(Flow(x, state), Layout())
        found["continued"] = flow.x
        found["state"] = flow.state
    for name, value in found.items():
        theirs = torch.from_numpy(STORED[f"{case} {length}: {name}"])
        if name == "state":  # with the second of each pair, where the matrix is dense
            theirs = theirs[:, :, : released.STATES // 2]
        torch.testing.assert_close(value.detach(), theirs, atol=1e-10, rtol=1e-10)


def test_dss_exp_has_the_released_kernel():
    """Which is Re where ours is 2 Re, and float32."""
    length, given = released.LENGTHS[-1], released.weights(1)
    mixer = built(
        width=released.WIDTH, states=released.STATES, independent=1, kernel="dss_exp", causal=True
    )
    parts, impulse = mixer.dynamics, torch.zeros(1, released.WIDTH, length).double()
    impulse[..., 0] = 1
    with torch.no_grad():
        parts.log_decay.copy_(given["A_real"][:1])
        parts.frequency.copy_(-given["A_imag"][:1])
        parts.log_step.copy_(given["inv_dt"][:, 0] - parts.middle)
        kernel, _ = parts(impulse, torch.view_as_complex(given["C"] / 2), None)
    theirs = torch.from_numpy(STORED["dss"])
    torch.testing.assert_close(kernel[0].float(), theirs, atol=1e-6, rtol=1e-6)
