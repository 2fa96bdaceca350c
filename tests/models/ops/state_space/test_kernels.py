"""Kernels by two factors: second gradients, and strong decays in float32."""

from functools import partial

import pytest
import torch

from lra.models.ops.state_space.kernels import polynomial, vandermonde
from tests.attention import drawn


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("length", [1, 6])
def test_gradients_equal_finite_differences_twice_over(dtype, length):
    c, factor = (drawn(2, 2, seed=seed).to(dtype).requires_grad_() for seed in (1, 2))
    u = drawn(2, length).requires_grad_()
    kernel = partial(vandermonde, length=length)
    for run, given in ((kernel, (c, factor)), (polynomial, (u, factor))):
        assert torch.autograd.gradcheck(run, given)
        assert torch.autograd.gradgradcheck(run, given)


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
