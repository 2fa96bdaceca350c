"""S5 against its recurrence, token by token: values, gradients, states, first values."""

import math

import pytest
import torch

from lra.models.families.s4 import S4
from lra.models.families.s5 import S5, GatedMixing, Output
from lra.models.mixer import Layout, Site
from lra.models.ops.state_space.discretisation import Discretisation, discretise
from lra.models.ops.state_space.hippo import legs_vectors
from lra.models.tuning import Tuning
from lra.runners.training.optimisers.groups import tunings
from tests.attention import builder, drawn
from tests.literal import state_space as reference

SITE = {"width": 6, "heads": 2, "max_length": 32}
LENGTH = 13
RULES = pytest.mark.parametrize("rule", [*Discretisation])


built = builder(S5, **SITE, states=8, blocks=2)


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
