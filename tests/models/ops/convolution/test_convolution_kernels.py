"""Kernels made of pieces, and inputs remembered, against loops: values, gradients, borders."""

import pytest
import torch
from torch.nn import functional as F

from lra.models.ops.convolution.kernels import soft_threshold, upsample
from tests.attention import drawn


@pytest.mark.parametrize("times", [1, 2, 8, 64])
@pytest.mark.parametrize("count", [1, 3, 32])
def test_points_are_those_of_pytorch(times, count):
    x = drawn(2, 3, count)
    wanted = F.interpolate(x, scale_factor=times, mode="linear")
    torch.testing.assert_close(upsample(x, times), wanted, atol=1e-13, rtol=0)


def test_small_values_are_0_and_others_nearer_to_it():
    x = torch.tensor([-2.0, -0.5, -0.1, 0.0, 0.3, 0.5, 4.0])
    wanted = torch.tensor([-1.5, 0, 0, 0, 0, 0, 3.5])
    assert torch.equal(soft_threshold(x, 0.5), wanted)
