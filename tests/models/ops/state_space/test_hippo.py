"""What state spaces start from, against HiPPO's matrices and against numbers of its paper."""

import pytest
import torch

from lra.models.ops.state_space.hippo import Initial, spectrum
from lra.models.ops.state_space.kernels import vandermonde
from tests.literal import state_space as reference


def test_legs_is_the_normal_part_of_its_matrix():
    transition, _, low_rank = reference.legs(16)
    eigenvalues = torch.linalg.eigvals(transition + torch.outer(low_rank, low_rank))
    wanted = eigenvalues[eigenvalues.imag > 0]
    wanted = wanted[wanted.imag.argsort()]
    torch.testing.assert_close(spectrum(Initial.legs, 16)[0], wanted, atol=1e-11, rtol=0)


@pytest.mark.parametrize("rule", ["zoh", "bilinear"])
@pytest.mark.parametrize("turns", [0, 1])
def test_legs_is_the_dense_recurrence_of_its_normal_part(rule, turns):
    """With C = B^T S^turns, S the skew part, whose eigenvalues are i w: phases fall out."""
    states, step = 8, 0.1
    transition, entry, low_rank = reference.legs(states)
    normal = transition + torch.outer(low_rank, low_rank)
    rates, inputs = spectrum(Initial.legs, states)
    one = torch.eye(states, dtype=torch.float64)
    if rule == "zoh":
        power = torch.matrix_exp(step * normal)
        driven = torch.linalg.solve(normal, (power - one) @ entry)
        factor = (step * rates).exp()
        weights = (factor - 1) / rates * inputs
    else:
        before, after = one - step / 2 * normal, one + step / 2 * normal
        power, driven = (torch.linalg.solve(before, x) for x in (after, step * entry))
        factor = (1 + step / 2 * rates) / (1 - step / 2 * rates)
        weights = step * inputs / (1 - step / 2 * rates)
    skew = normal + one / 2
    readout = entry @ torch.linalg.matrix_power(skew, turns)
    c = weights * inputs * (1j * rates.imag) ** turns
    kernel = vandermonde(c[None], factor[None], 33)[0]
    impulse = torch.zeros(1, 33, dtype=torch.float64)
    impulse[0, 0] = 1
    wanted = reference.dense(impulse, power, driven, readout)[0]
    torch.testing.assert_close(kernel, wanted, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize(
    ("initial", "lowest"),
    [
        (Initial.legs, [0.352, 1.372, 2.900]),
        (Initial.legs_ones, [0.352, 1.372, 2.900]),
        (Initial.inverse, [0.340, 1.175, 2.315]),
        (Initial.linear, [0.0, 3.142, 6.283]),
    ],
)
def test_the_lowest_frequencies_of_sixteen_states(initial, lowest):
    rates, inputs = spectrum(initial, 16)
    assert len(rates) == len(inputs) == 8
    assert rates.real.eq(-0.5).all()
    assert rates.imag.diff().gt(0).all()
    assert inputs.gt(0).all()
    assert inputs.eq(1).all() == (initial != Initial.legs)
    torch.testing.assert_close(rates.imag[:3], torch.tensor(lowest).double(), atol=6e-4, rtol=0)


def test_it_is_on_the_cpu_whatever_the_device():
    with torch.device("meta"):
        assert spectrum(Initial.legs, 8)[0].device.type == "cpu"
