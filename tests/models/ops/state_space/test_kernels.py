"""Kernels by two factors against the table of all powers, and against the recurrence."""

from functools import partial

import pytest
import torch

from lra.models.ops.state_space.kernels import exponential, polynomial, power, vandermonde
from tests.attention import compare, drawn
from tests.literal import state_space as reference

LENGTHS = pytest.mark.parametrize("length", [1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 64, 65, 101])
NUMBERS = pytest.mark.parametrize("numbers", ["real", "complex"])
CHANNELS, STATES = 3, 5


def leaves(numbers, *axes):
    """Return weights, and eigenvalues inside the unit circle: one is 0, one negative."""
    c, radius = drawn(*axes, CHANNELS, STATES, seed=1), drawn(CHANNELS, STATES, seed=2).tanh()
    radius[0, 0], radius[1, 1] = 0.0, -0.9
    if numbers == "complex":
        c = torch.complex(c, drawn(*c.shape, seed=3))
        radius = torch.polar(radius.abs(), drawn(*radius.shape, seed=4))
    return c.requires_grad_(), radius.requires_grad_()


@LENGTHS
@NUMBERS
@pytest.mark.parametrize("axes", [(), (2,)])
def test_a_kernel_is_the_table_of_all_powers(length, numbers, axes):
    c, factor = leaves(numbers, *axes)
    kernel = vandermonde(c, factor, length)
    compare(kernel, reference.vandermonde(c, factor, length), [c, factor], atol=1e-10)


@LENGTHS
@pytest.mark.parametrize("axes", [(), (2,)])
def test_an_exponential_is_the_sum_of_its_powers(length, axes):
    p, q = leaves("real", *axes)
    compare(exponential(p, q, length), reference.exponential(p, q, length), [p, q], atol=1e-10)


@LENGTHS
@NUMBERS
def test_a_polynomial_is_horners(length, numbers):
    _, factor = leaves(numbers)
    u = drawn(2, CHANNELS, length, seed=5).requires_grad_()
    sums, wanted = polynomial(u, factor), reference.polynomial(u, factor)
    if numbers == "complex":
        sums, wanted = torch.view_as_real(sums), torch.view_as_real(wanted)
    compare(sums, wanted, [u, factor], atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("length", [1, 6])
def test_gradients_equal_finite_differences_twice_over(dtype, length):
    c, factor = (drawn(2, 2, seed=seed).to(dtype).requires_grad_() for seed in (1, 2))
    u = drawn(2, length).requires_grad_()
    kernel = partial(vandermonde, length=length)
    for run, given in ((kernel, (c, factor)), (polynomial, (u, factor))):
        assert torch.autograd.gradcheck(run, given)
        assert torch.autograd.gradgradcheck(run, given)


@pytest.mark.parametrize("exponent", [1, 2, 3, 12, 31])
def test_powers_are_products(exponent):
    base = torch.tensor([0.0, -0.5, 1.5], dtype=torch.float64, requires_grad=True)
    compare(power(base, exponent), base**exponent, [base])


@pytest.mark.parametrize("length", [1024, 16_384])
def test_strong_decays_stay_finite_and_near_in_float32(length):
    """Steps from 1e-3 to 1e3: factors from nearly 1 to 0, also in their gradients."""
    step = torch.logspace(-3, 3, 7, dtype=torch.float64)[:, None]
    rate = torch.complex(torch.full((4,), -0.5, dtype=torch.float64), torch.arange(4.0).double())
    factor, c = (step * rate).exp(), torch.complex(drawn(7, 4), drawn(7, 4, seed=1))
    single = [x.to(torch.complex64).requires_grad_() for x in (c, factor)]
    kernel = vandermonde(*single, length)
    wanted = vandermonde(*(x.detach().to(torch.complex128) for x in single), length)
    assert (kernel - wanted).abs().max() < 1e-5 * wanted.abs().max()
    kernel.sum().backward()
    assert all(x.grad.isfinite().all() for x in single)
    sums = polynomial(torch.ones(7, length), single[1])
    sums.abs().sum().backward()
    assert sums.isfinite().all()
    assert single[1].grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    c, factor = drawn(2, 3).to(dtype), drawn(2, 3, seed=1).tanh().to(dtype)
    with torch.autocast("cpu", torch.bfloat16):
        kernel, sums = vandermonde(c, factor, 9), polynomial(c, factor)
    assert kernel.dtype == sums.dtype == torch.float32
    torch.testing.assert_close(kernel, reference.vandermonde(c.float(), factor.float(), 9))
    torch.testing.assert_close(sums, reference.polynomial(c.float(), factor.float()))
