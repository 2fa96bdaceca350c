"""Diagonal plus low rank: float32, second gradients, and what is kept."""

import pytest
import torch

from lra.models.contract.counting import saved_bytes
from lra.models.ops.state_space import low_rank as module
from lra.models.ops.state_space.hippo import Initial, spectrum
from lra.models.ops.state_space.low_rank import (
    LowRank,
    as_readout,
    as_states,
    bilinear,
    low_rank_state_space,
    responses,
    squares,
)
from tests.attention import drawn

CHANNELS, PAIRS = 3, 4


def complex_drawn(*shape, seed):
    return torch.complex(drawn(*shape, seed=seed), drawn(*shape, seed=seed + 50))


def leaves(directions=1):
    """Return Lambda, P, B, dt and C as leaves, dt from 0.02 to 2."""
    rates = torch.complex(-drawn(CHANNELS, PAIRS, seed=1).exp(), 3 * drawn(CHANNELS, PAIRS, seed=2))
    given = [rates, *(complex_drawn(CHANNELS, PAIRS, seed=seed) for seed in (3, 4))]
    given += [torch.tensor([0.02, 0.2, 2.0], dtype=torch.float64)]
    given += [complex_drawn(directions, CHANNELS, PAIRS, seed=5)]
    return [x.requires_grad_() for x in given]


def run(u, *given, before=None):
    return low_rank_state_space(u, LowRank(*given[:4]), given[4], before)


def published(length, dtype):
    """Return what S4 starts from with 64 states, steps from 0.001 to 0.1."""
    rates, inputs = spectrum(Initial.legs, 64)
    rates, b = rates.expand(8, -1), inputs.to(torch.complex128).expand(8, -1)
    step = torch.logspace(-3, -1, 8, dtype=torch.float64)
    given = [rates, b / 2**0.5, b, step, complex_drawn(1, 8, 32, seed=5)]
    single = [x.to(torch.complex64 if x.is_complex() else torch.float32) for x in given]
    return [x.to(dtype.to_complex() if x.is_complex() else dtype) for x in single]


@pytest.mark.parametrize("length", [1024, 16_384])
def test_float32_is_near(length):
    kernels = []
    for dtype in (torch.float32, torch.float64):
        *parts, readout = published(length, dtype)
        change, driven = bilinear(LowRank(*parts))
        powers = squares(change, length)
        kernels.append(responses(as_readout(readout), powers, driven[None], length)[0, 0])
    scale = kernels[1].abs().amax(-1, keepdim=True)
    assert ((kernels[0] - kernels[1]) / scale).abs().max() < 1e-5


def test_gradients_equal_finite_differences_twice_over():
    *parts, step, readout = (x.detach() for x in leaves())
    given = [x[:1, :1] for x in parts] + [step[1:2], readout[:, :1, :1]]
    given = [x.requires_grad_() for x in given]
    u = drawn(1, 1, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda *x: run(*x)[0], (u, *given))
    assert torch.autograd.gradgradcheck(lambda *x: run(*x)[0], (u, *given))


def test_parameters_alone_are_kept():
    """What every block makes is made again: tables are 20 times as large as what is kept."""
    given = [x.clone().requires_grad_() for x in published(4096, torch.float32)]
    u = drawn(1, 8, 4096).float()
    kept = saved_bytes(lambda: run(u, *given)[0])
    convolved = 2 * u.nbytes
    assert kept <= convolved + 8 * sum(x.nbytes for x in given)


def test_states_are_real_parts_in_front_of_imaginary_ones():
    x, c = complex_drawn(5, 3, seed=1), complex_drawn(5, 3, seed=2)
    read = (as_readout(c) * as_states(x)).sum(-1)
    torch.testing.assert_close(read, 2 * (c * x).sum(-1).real)
    assert torch.equal(module.as_pairs(as_states(x)), x)
