"""Convolutions by Fourier transforms: their points, how many there are, second gradients."""

import pytest
import torch

from lra.models.ops.convolution.long import fast_points, long_convolution
from tests.attention import Calls, drawn


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
