"""Convolutions by Fourier transforms against the double loop: values, gradients, precision."""

import pytest
import torch

from lra.models.ops.convolution.long import fast_points, long_convolution
from tests.attention import Calls, compare, drawn
from tests.literal.convolutions import long_convolution as literal

LENGTHS = pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 9, 16, 17, 33])


@LENGTHS
@pytest.mark.parametrize("two_sided", [False, True])
def test_it_is_the_double_loop(length, two_sided):
    u = drawn(2, 3, length, seed=1).requires_grad_()
    kernels = [drawn(3, length, seed=seed).requires_grad_() for seed in (2, 3)][: 1 + two_sided]
    compare(long_convolution(u, *kernels), literal(u, *kernels), [u, *kernels], atol=1e-10)


@pytest.mark.parametrize("taps", [1, 4, 30])
def test_kernels_of_other_lengths_end_or_are_cut(taps):
    u, kernels = drawn(2, 3, 9, seed=1), [drawn(3, taps, seed=seed) for seed in (2, 3)]
    whole = [torch.nn.functional.pad(kernel, (0, 9))[:, :9] for kernel in kernels]
    y, wanted = long_convolution(u, *kernels), literal(u, *whole)
    torch.testing.assert_close(y, wanted, atol=1e-10, rtol=0)


def test_one_at_lag_0_changes_nothing_and_one_behind_hears_the_next():
    u, one, none = drawn(2, 3, 9), torch.zeros(3, 9), torch.zeros(3, 9)
    one[:, 0] = 1
    torch.testing.assert_close(long_convolution(u, one), u, atol=1e-12, rtol=0)
    torch.testing.assert_close(long_convolution(u, one, none), u, atol=1e-12, rtol=0)
    following = torch.cat((u[..., 1:], torch.zeros_like(u[..., :1])), dim=-1)
    torch.testing.assert_close(long_convolution(u, none, one), following, atol=1e-12, rtol=0)


@pytest.mark.parametrize("least", [1, 2, 3, 7, 11, 13, 14, 97, 1023, 1025, 5999, 100_003])
def test_points_are_the_next_product_of_small_primes(least):
    def is_fast(points: int) -> bool:
        for prime in (2, 3, 5):
            while points % prime == 0:
                points //= prime
        return points == 1

    assert fast_points(least) == next(
        points for points in range(least, 2 * least + 2) if points % 2 == 0 and is_fast(points)
    )


def test_there_are_three_transforms_forward_and_five_backward():
    u, kernel = torch.ones(4, 3, 64).requires_grad_(), torch.ones(3, 64).requires_grad_()
    with Calls() as forward:
        y = long_convolution(u, kernel, kernel)
    with Calls() as backward:
        y.sum().backward()
    counts = [
        {name: calls.names.count(name) for name in ("_fft_r2c", "_fft_c2r")}
        for calls in (forward, backward)
    ]
    assert counts == [{"_fft_r2c": 2, "_fft_c2r": 1}, {"_fft_r2c": 3, "_fft_c2r": 2}]


def test_gradients_equal_finite_differences_twice_over():
    given = [x.requires_grad_() for x in (drawn(2, 2, 5), drawn(2, 5, seed=1), drawn(2, 5, seed=2))]
    assert torch.autograd.gradcheck(long_convolution, given)
    assert torch.autograd.gradgradcheck(long_convolution, given)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    u, kernel = drawn(1, 2, 9).to(dtype).requires_grad_(), drawn(2, 9, seed=1).to(dtype)
    with torch.autocast("cpu", torch.bfloat16):
        y = long_convolution(u, kernel)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, literal(u.float(), kernel.float()))
    y.sum().backward()
    assert u.grad.dtype == dtype
