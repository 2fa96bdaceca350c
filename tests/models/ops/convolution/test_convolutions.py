"""Both convolutions against the sum over taps: values and gradients."""

import pytest
import torch

from lra.models.contract.counting import count_operations
from lra.models.ops.convolution.blocks import BLOCK
from lra.models.ops.convolution.dynamic import dynamic_convolution
from lra.models.ops.convolution.shared import shared_convolution
from tests.attention import Largest, compare, drawn
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


@pytest.mark.parametrize("taps", [3, 31])
def test_work_and_space_grow_with_the_length_alone(taps):
    def run(length: int) -> tuple[int, int]:
        x, weight = drawn(1, 2, length, 8).requires_grad_(), drawn(1, 2, length, taps)
        with Largest() as largest:
            dynamic_convolution(x, weight, 0).sum().backward()
        work = count_operations(lambda: dynamic_convolution(x, weight, 0))
        return work, largest.elements

    (few, small), (many, large) = run(8 * BLOCK - taps + 1), run(32 * BLOCK - taps + 1)
    assert many == 4 * few == 2 * 32 * BLOCK * 2 * 8 * (BLOCK + taps - 1)
    assert large <= 4 * small <= 4 * (8 * BLOCK) * (BLOCK + taps - 1) * 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    x, weight = drawn(1, 2, 9, 4).to(dtype).requires_grad_(), drawn(1, 2, 9, 3).to(dtype)
    y = dynamic_convolution(x, weight, 1)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, literal(x.float(), weight.float(), 1))
    y.sum().backward()
    assert x.grad.dtype == dtype
