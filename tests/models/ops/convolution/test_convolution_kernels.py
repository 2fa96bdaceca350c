"""Kernels made of pieces, and inputs remembered, against loops: values, gradients, borders."""

import pytest
import torch
from torch.nn import functional as F

from lra.models.ops.convolution.kernels import soft_threshold, upsampled
from lra.models.ops.convolution.long import continued_convolution
from tests.attention import compare, drawn
from tests.literal.convolutions import long_convolution


@pytest.mark.parametrize("times", [1, 2, 8, 64])
@pytest.mark.parametrize("count", [1, 3, 32])
def test_points_are_those_of_pytorch(times, count):
    x = drawn(2, 3, count)
    wanted = F.interpolate(x, scale_factor=times, mode="linear")
    torch.testing.assert_close(upsampled(x, times), wanted, atol=1e-13, rtol=0)


def test_small_values_are_0_and_others_nearer_to_it():
    x = torch.tensor([-2.0, -0.5, -0.1, 0.0, 0.3, 0.5, 4.0])
    wanted = torch.tensor([-1.5, 0, 0, 0, 0, 0, 3.5])
    assert torch.equal(soft_threshold(x, 0.5), wanted)


@pytest.mark.parametrize("memory", [0, 1, 4, 30])
@pytest.mark.parametrize("cut", [[20], [1] * 20, [3, 1, 16]])
def test_each_token_sees_what_is_remembered(memory, cut):
    u, kernel = drawn(2, 3, 20, seed=1).requires_grad_(), drawn(3, 31, seed=2).requires_grad_()
    before, outputs = u.new_zeros(2, 3, memory), []
    for piece in u.split(cut, dim=-1):
        y, before = continued_convolution(piece, kernel, before)
        outputs.append(y)
    seen = torch.cat((kernel[:, : memory + 1], kernel.new_zeros(3, 20)), dim=1)[:, :20]
    wanted = long_convolution(u, seen)
    compare(torch.cat(outputs, dim=-1), wanted, [u, kernel], atol=1e-10)
    padded = F.pad(u, (memory, 0))
    assert torch.equal(before, padded[..., padded.shape[-1] - memory :])
