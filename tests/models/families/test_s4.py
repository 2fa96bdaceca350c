"""S4D against its recurrence, channel by channel: values, gradients, states, padding."""

import math

import pytest
import torch
from torch.nn import functional as F

from models.families.s4 import S4, Discretisation
from models.mixer import Flow, Layout, Site, Unsupported
from models.ops.state_space.hippo import Initial
from models.ops.state_space.reference import diagonal
from models.state import size_bytes
from models.tuning import Tuning
from runners.training.optimisers.groups import tunings
from tests.attention import drawn, holes

SITE = {"width": 6, "heads": 2, "max_length": 32}
LENGTH = 13
RULES = pytest.mark.parametrize("rule", [*Discretisation])


def built(**options) -> S4:
    """Return a mixer of few states in evaluation mode, in float64."""
    facts = {name: options.pop(name) for name in [*options] if name in Site.__slots__}
    torch.manual_seed(3)
    return S4(Site(**(SITE | facts)), **{"states": 8} | options).double().eval()


def equations(mixer, x):
    """Compute a layer from its parameters, token by token, and from the end for the other side."""
    parts, outputs = mixer.dynamics, []
    width, number = x.shape[-1], len(parts.frequency)
    for channel in range(width):
        one = channel % number
        rate = torch.complex(-parts.log_decay[one].exp(), parts.frequency[one])
        entry = torch.complex(*parts.entry[one].unbind(-1))
        step = (parts.middle + parts.log_step[channel]).exp()
        if mixer.discretisation == Discretisation.zoh:
            factor = (step * rate).exp()
            entry = (factor - 1) / rate * entry
        else:
            factor = (1 + step / 2 * rate) / (1 - step / 2 * rate)
            entry = step * entry / (1 - step / 2 * rate)
        u = x[:, None, :, channel]
        y = mixer.skip[channel] * u
        for side, readout in enumerate(mixer.readout[:, channel]):
            seen = torch.cat((0 * u[..., :1], u.flip(-1)[..., :-1]), dim=-1) if side else u
            part = diagonal(seen, factor[None], entry[None], torch.complex(*readout.T)[None])
            y = y + (part.flip(-1) if side else part)
        outputs.append(y[:, 0])
    y = mixer.out_proj(F.gelu(torch.stack(outputs, dim=-1)))
    return y[..., :width] * y[..., width:].sigmoid() if mixer.mixing == "glu" else y


def compare(y, wanted, leaves):
    torch.testing.assert_close(y, wanted, atol=1e-10, rtol=0)
    direction = drawn(*wanted.shape, seed=9)
    here, there = (torch.autograd.grad(each, leaves, direction) for each in (y, wanted))
    for one, other in zip(here, there, strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10)


@RULES
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"init": "inverse", "independent": 2},
        {"init": "linear", "mixing": "linear", "states": 2},
    ],
)
def test_it_is_its_recurrence(rule, causal, options):
    mixer, x = built(causal=causal, discretisation=rule, **options), drawn(2, LENGTH, 6)
    compare(mixer(x.requires_grad_(), Layout()), equations(mixer, x), [x, *mixer.parameters()])


@pytest.mark.parametrize("length", [1, 2, 3])
def test_short_rows_are_its_recurrence(length):
    mixer, x = built(), drawn(2, length, 6)
    torch.testing.assert_close(mixer(x, Layout()), equations(mixer, x), atol=1e-10, rtol=0)


@pytest.mark.parametrize("causal", [True, False])
def test_padding_is_as_if_it_were_not_there(causal):
    mixer, keep = built(causal=causal), holes(LENGTH, end=9)
    x = drawn(2, LENGTH, 6)
    y = mixer(x, Layout(keep=keep))
    for row in range(2):
        real = keep[row]
        wanted = mixer(x[row, real][None], Layout())[0]
        torch.testing.assert_close(y[row, real], wanted, atol=1e-10, rtol=0)


@RULES
@pytest.mark.parametrize("cut", [[LENGTH], [1] * LENGTH, [2, 1, LENGTH - 3]])
def test_however_a_stream_is_cut_the_outputs_are_the_same(rule, cut):
    mixer, x = built(causal=True, discretisation=rule), drawn(2, LENGTH, 6)
    state, outputs = mixer.initial_state(2, LENGTH), []
    held = size_bytes(state)
    for piece in x.split(cut, dim=1):
        flow = mixer.extend(Flow(piece, state), Layout())
        state = flow.state
        outputs.append(flow.x)
    torch.testing.assert_close(torch.cat(outputs, 1), mixer(x, Layout()), atol=1e-10, rtol=0)
    assert size_bytes(state) == held == 8 * 2 * 6 * 8


@pytest.mark.parametrize("init", [*Initial])
@pytest.mark.parametrize("causal", [True, False])
def test_parameters_are_those_of_its_paper(init, causal):
    width, states, number = 6, 8, 2
    mixer = built(init=init, causal=causal, independent=number)
    sides = 1 if causal else 2
    wanted = sides * states * width + number * 2 * states + 2 * width + 2 * width * (width + 1)
    assert sum(parameter.numel() for parameter in mixer.parameters()) == wanted


def test_steps_are_log_uniform_between_their_ends():
    parts = built(width=512, step_min=0.01, step_max=0.04).dynamics
    steps = parts.middle + parts.log_step
    assert math.log(0.01) <= steps.min() < math.log(0.011)
    assert math.log(0.038) < steps.max() <= math.log(0.04)


def test_half_precision_rounds_no_phase():
    mixer = built(causal=True, states=64).float()
    wanted = mixer(drawn(1, 64, 6).float(), Layout())
    y = mixer.bfloat16()(drawn(1, 64, 6).bfloat16(), Layout())
    assert {each.dtype for each in mixer.dynamics.parameters()} == {torch.float32}
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), wanted, atol=0.02 * wanted.abs().max().item(), rtol=0)


def test_strong_decays_and_long_rows_stay_finite_in_float32():
    mixer = built(states=64, max_length=4096, step_min=0.001, step_max=1000.0).float()
    mixer(drawn(1, 4096, 6).float(), Layout()).sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in mixer.parameters())


def test_dynamics_learn_slowly_and_do_not_decay():
    mixer = built(rate=0.2, rate_of_step=0.3)
    names = {parameter: name for name, parameter in mixer.named_parameters()}
    said = {names[parameter]: tuning for parameter, tuning in tunings(mixer)}
    for name, rate in (("log_decay", 0.2), ("frequency", 0.2), ("entry", 0.2), ("log_step", 0.3)):
        tuning = said[f"dynamics.{name}"]
        assert (tuning.learning_rate_scale, tuning.weight_decay) == (rate, 0.0)
    assert said["readout"] == said["skip"] == Tuning()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"states": 7}, "states come in pairs: got states=7"),
        ({"independent": 4}, "independent must divide width: got independent=4, width=6"),
        ({"step_min": 0.2}, "the shortest first: got step_min=0.2, step_max=0.1"),
        ({"rate": 0.0}, "rate must be positive: got 0.0"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\): got 1.0"),
        ({"init": "fourier"}, "init"),
        ({"causal": True, "bidirectional": False}, "bidirectional has nothing to act on"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        built(**options)


def test_a_state_belongs_to_one_direction():
    with pytest.raises(Unsupported, match="needs a causal mixer"):
        built().initial_state(2, 8)
