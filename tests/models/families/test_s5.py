"""S5 against its recurrence, token by token: values, gradients, states, first values."""

import math

import pytest
import torch

from lra.models.families.s4 import S4
from lra.models.families.s5 import HIGHEST_REAL, S5, GatedMixing, Output
from lra.models.mixer import Layout, Site
from lra.models.ops.state_space.discretisation import Discretisation, discretise
from lra.models.ops.state_space.hippo import legs_vectors
from lra.models.state import size_bytes
from lra.models.tuning import Tuning
from lra.runners.training.optimisers.groups import tunings
from tests.attention import builder, compare, drawn
from tests.literal import state_space as reference

SITE = {"width": 6, "heads": 2, "max_length": 32}
LENGTH = 13
RULES = pytest.mark.parametrize("rule", [*Discretisation])
CUT = 4
"""Tokens of a chunk of the recurrence at the lengths 10 to 16."""


built = builder(S5, **SITE, states=8, blocks=2)


def equations(mixer, x):
    """Compute a layer from its parameters, one token after the other, and from the end."""
    parts = mixer.dynamics
    real = parts.real.clamp(max=HIGHEST_REAL) if parts.clip else parts.real
    rate, step = torch.complex(real, parts.frequency), parts.log_step.exp()
    if parts.rule == Discretisation.zoh:
        factor = (step * rate).exp()
        entry = ((factor - 1) / rate)[:, None] * torch.complex(*parts.entry)
    else:
        factor = (1 + step / 2 * rate) / (1 - step / 2 * rate)
        entry = (step / (1 - step / 2 * rate))[:, None] * torch.complex(*parts.entry)
    y = mixer.skip * x
    for side, c in enumerate(mixer.readout):
        state, read = torch.zeros(len(x), len(factor), dtype=torch.complex128), []
        for u in (x.flip(1) if side else x).unbind(1):
            state = factor * state + u.to(state.dtype) @ entry.T
            read.append(2 * (state @ torch.complex(*c).T).real)
        read = torch.stack(read, dim=1)
        y = y + (read.flip(1) if side else read)
    g = y / 2 * (1 + torch.tanh((2 / math.pi) ** 0.5 * (y + 0.044715 * y**3)))
    if mixer.mixing == "none":
        return g
    gates = mixer.out_proj(g)
    if mixer.mixing == "full_glu":
        return gates[..., : x.shape[-1]] * gates[..., x.shape[-1] :].sigmoid()
    return (g if mixer.mixing == "half_glu1" else y) * gates.sigmoid()


@RULES
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {"mixing": "half_glu1", "output": "lecun"},
        {"mixing": "half_glu2", "output": "truncated", "blocks": 4},
        {"mixing": "full_glu", "output": "complex", "blocks": 1},
        {"mixing": "none", "states": 2, "blocks": 1},
    ],
)
def test_it_is_its_recurrence(rule, causal, options):
    mixer, x = built(causal=causal, discretisation=rule, **options), drawn(2, LENGTH, 6)
    compare(
        mixer(x.requires_grad_(), Layout()),
        equations(mixer, x),
        [x, *mixer.parameters()],
        atol=1e-10,
    )


@pytest.mark.parametrize("length", [1, CUT - 1, CUT, CUT + 1, 3 * CUT + 5])
def test_of_any_length_it_is_its_recurrence(length):
    mixer, x = built(), drawn(2, length, 6)
    compare(
        mixer(x.requires_grad_(), Layout()),
        equations(mixer, x),
        [x, *mixer.parameters()],
        atol=1e-10,
    )


def test_clipped_eigenvalues_decay():
    free, clipped = built(), built(clip_eigenvalues=True)
    for mixer in (free, clipped):
        with torch.no_grad():
            mixer.dynamics.real[:2] = torch.tensor([0.3, -1e-5])
    x = drawn(1, LENGTH, 6)
    for mixer in (free, clipped):
        compare(mixer(x.requires_grad_(), Layout()), equations(mixer, x), [x], atol=1e-10)
    assert (free(x, Layout()) - clipped(x, Layout())).abs().max() > 1e-5


@RULES
@pytest.mark.parametrize("sides", [1, 2])
def test_block_diagonal_matrices_are_a_state_space_for_each_channel(rule, sides):
    """P = N d with A, B and C of one channel in each block is S4D, whose later tokens begin at lag
    1 with power 0: C of the other side over lambda, but for the token itself."""
    width, states = 3, 4
    site = Site(width=width, heads=1, max_length=32)
    options = {"bidirectional": sides == 2, "discretisation": rule.name}
    torch.manual_seed(5)
    s4 = S4(site, states=states, **options).double()
    s5 = S5(site, states=states * width, blocks=width, **options).double()
    ours, theirs, half = s5.dynamics, s4.dynamics, states // 2
    rates, entry, step = theirs.continuous(torch.float64)
    factor, gain = discretise(rates, step[:, None], rule)
    entry = gain * entry
    with torch.no_grad():
        ours.real.copy_(-theirs.log_decay.exp().flatten())
        ours.frequency.copy_(theirs.frequency.flatten())
        ours.log_step.copy_((theirs.middle + theirs.log_step).repeat_interleave(half))
        ours.entry.zero_()
        s5.readout.zero_()
        s5.skip.copy_(s4.skip)
        for channel in range(width):
            block = slice(channel * half, (channel + 1) * half)
            ours.entry[:, block, channel] = theirs.entry[channel].T
            for side, c in enumerate(torch.view_as_complex(s4.readout[:, channel])):
                c = c / factor[channel] if side else c
                s5.readout[side, :, channel, block] = torch.view_as_real(c).T
                if side:
                    s5.skip[channel] -= 2 * (c * entry[channel]).real.sum()
    u = drawn(2, LENGTH, width)
    wanted = s4.read(u, None, None)[0][0] + s4.skip * u
    parts, _ = s5.read(u, None, None)
    torch.testing.assert_close(sum(parts, start=s5.skip * u), wanted, atol=1e-12, rtol=0)


def test_a_state_holds_as_much_as_is_said():
    assert size_bytes(built(causal=True).initial_state(2, LENGTH)) == 8 * 2 * 8


@pytest.mark.parametrize("states", [8, 32])
def test_a_state_takes_four_bytes_for_each_number(states):
    mixer = S5(Site(width=64, heads=1, max_length=8, causal=True), states=states, blocks=1)
    assert size_bytes(mixer.initial_state(1, 1000)) == 4 * states


@pytest.mark.parametrize(
    ("depth", "width", "states", "total"),
    [
        pytest.param(8, 128, 16, 184_512, id="listops"),
        pytest.param(6, 256, 192, 1_285_824, id="text"),
        pytest.param(6, 128, 256, 693_504, id="retrieval and pathx"),
        pytest.param(6, 512, 384, 5_127_552, id="image"),
        pytest.param(6, 192, 256, 1_112_832, id="pathfinder"),
    ],
)
def test_parameters_are_those_of_its_stacks(depth, width, states, total):
    terms = {
        "dynamics.real": states // 2,
        "dynamics.frequency": states // 2,
        "dynamics.entry": states * width,
        "dynamics.log_step": states // 2,
        "readout": 2 * states * width,
        "skip": width,
        "out_proj.weight": width**2,
        "out_proj.bias": width,
    }
    with torch.device("meta"):
        mixer = S5(Site(width=width, heads=1, max_length=8), states=states, blocks=1)
    assert {name: part.numel() for name, part in mixer.named_parameters()} == terms
    assert depth * (sum(terms.values()) + 2 * width) == total


def test_one_direction_has_one_readout_and_a_full_glu_two_maps():
    def count(**options):
        return sum(each.numel() for each in built(**options).parameters())

    assert count() - count(bidirectional=False) == 8 * 6
    assert count(mixing="full_glu") - count() == 6 * 6 + 6
    assert count() - count(mixing="none") == 6 * 6 + 6


def test_eigenvalues_start_from_blocks_of_hippo():
    parts = built(states=24, blocks=3).dynamics
    transition, _, low_rank = reference.legs(8)
    wanted = torch.linalg.eigvals(transition + torch.outer(low_rank, low_rank)).imag
    wanted = wanted[wanted > 0].sort().values.repeat(3)
    assert parts.real.eq(-0.5).all()
    torch.testing.assert_close(parts.frequency, wanted, atol=1e-5, rtol=0)


def test_steps_are_log_uniform_between_their_ends():
    steps = built(states=1024, blocks=64, step_min=0.01, step_max=0.04).dynamics.log_step
    assert math.log(0.01) - 1e-6 <= steps.min() < math.log(0.011)
    assert math.log(0.038) < steps.max() <= math.log(0.04) + 1e-6
    assert abs(steps.mean() - math.log(0.02)) < 0.05


def in_place_of_eigenvectors(numbers, blocks, states):
    """Return 2 Re(V x) of each block: the real matrix that x = V* times it was made of."""
    _, vectors = legs_vectors(states // blocks)
    return 2 * (vectors @ numbers.unflatten(0, (blocks, -1))).real


def test_inputs_are_real_numbers_in_the_basis_of_eigenvectors():
    width, states, blocks = 400, 32, 4
    entry = torch.complex(*built(width=width, states=states, blocks=blocks).dynamics.entry)
    drawn_from = in_place_of_eigenvectors(entry, blocks, states)
    assert abs(drawn_from.var() * states - 1) < 0.02
    cut = 2 / 0.8796 / states**0.5
    assert 0.99 * cut < drawn_from.abs().max() < 1.0001 * cut
    assert abs(entry.real.var() * 2 * states - 1) < 0.05


@pytest.mark.parametrize("output", [*Output])
def test_outputs_have_the_variance_of_their_law(output):
    width, states = 400, 32
    readout = built(width=width, states=states, blocks=4, output=output).readout
    wanted = {"lecun": 1 / (width * states), "truncated": 1 / states, "complex": 0.5}[output]
    for part in readout.flatten(0, 1):
        assert abs(part.var() / wanted - 1) < 0.06
    assert readout[0].ne(readout[1]).all()


def test_dropout_falls_on_channels_of_a_row():
    mixer = built(dropout=0.5, mixing=GatedMixing.none).train()
    y = mixer(drawn(3, LENGTH, 6), Layout())
    dropped = y.eq(0)
    assert dropped.any()
    assert dropped.eq(dropped[:, :1]).all()
    assert not dropped.all()


def test_half_precision_rounds_no_phase():
    mixer = built(causal=True, states=64).float()
    wanted = mixer(drawn(1, 64, 6).float(), Layout())
    y = mixer.bfloat16()(drawn(1, 64, 6).bfloat16(), Layout())
    assert {each.dtype for each in mixer.dynamics.parameters()} == {torch.float32}
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), wanted, atol=0.02 * wanted.abs().max().item(), rtol=0)


SLOW = Tuning(learning_rate_scale=0.2, weight_decay=0.0, matrix=False)


@pytest.mark.parametrize(
    ("options", "entry", "step"),
    [
        ({}, SLOW, SLOW),
        ({"fast_step": True}, SLOW, Tuning()),
        ({"decay_input": True}, Tuning(learning_rate_scale=0.2), SLOW),
        ({"fast_input": True}, Tuning(), SLOW),
    ],
)
def test_parameters_learn_by_the_sets_of_the_released_code(options, entry, step):
    mixer = built(rate=0.2, **options)
    names = {parameter: name for name, parameter in mixer.named_parameters()}
    found = {names[parameter]: tuning for parameter, tuning in tunings(mixer)}
    assert found["dynamics.real"] == found["dynamics.frequency"] == SLOW
    assert (found["dynamics.entry"], found["dynamics.log_step"]) == (entry, step)
    assert found["readout"] == found["skip"] == found["out_proj.weight"] == Tuning()
