"""Both convolutions against the sum over taps: values and gradients."""

import pytest
import torch

from lra.models.ops.convolution.dynamic import dynamic_convolution
from lra.models.ops.convolution.shared_kernel import shared_convolution
from tests.attention import compare, drawn
from tests.literal.convolutions import convolution as literal

KERNELS = pytest.mark.parametrize(
    ("taps", "left", "length"),
    [(1, 0, 5), (3, 2, 7), (4, 1, 9), (31, 15, 70), (40, 39, 3), (65, 64, 66), (130, 40, 33)],
)


@KERNELS
def test_every_token_has_its_kernel(taps, left, length):
    x = drawn(2, 3, length, 5, seed=1).requires_grad_()
    weight = drawn(2, 3, length, taps, seed=2).requires_grad_()
    found = dynamic_convolution(x, weight, left)
    compare(found, literal(x, weight, left), [x, weight], atol=1e-11)


@KERNELS
def test_all_tokens_share_a_kernel(taps, left, length):
    x = drawn(2, 3, length, 5, seed=1).requires_grad_()
    weight = drawn(3, taps, seed=2).requires_grad_()
    keep = drawn(2, length, seed=3) > -0.5
    found = shared_convolution(x, weight, left, keep)
    every = weight[None, :, None].expand(2, 3, length, taps)
    wanted = literal(x * keep[:, None, :, None], every, left)
    compare(found, wanted, [x, weight], atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    x, weight = drawn(1, 2, 9, 4).to(dtype).requires_grad_(), drawn(1, 2, 9, 3).to(dtype)
    y = dynamic_convolution(x, weight, 1)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, literal(x.float(), weight.float(), 1))
    y.sum().backward()
    assert x.grad.dtype == dtype
