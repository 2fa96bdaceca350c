"""The tree of short convolutions against its loops: values, gradients, documents, streams."""

import math

import pytest
import torch

from lra.models.ops.convolution.tree import depth_for, dilated_tree


@pytest.mark.parametrize("taps", [2, 3, 4, 7])
def test_the_levels_reach_the_first_token_and_no_further(taps):
    for length in (1, 2, 3, 7, 8, 9, 100, 1024, 2048, 2049):
        wanted = math.ceil(math.log2((length - 1) / (taps - 1) + 1))
        assert depth_for(length, taps) == wanted
    length, depth = 40, depth_for(40, taps)
    weights = [torch.rand(1, size).double() + 0.1 for size in (taps, taps, depth + 2)]
    x = torch.eye(length).double()[:1].T[None]  # the first token alone
    assert dilated_tree(x, *weights)[0][0, -1].abs() > 1e-12
    fewer = [*weights[:2], weights[2][:, 1:]]
    reach = (taps - 1) * (2 ** (depth - 1) - 1)
    assert not dilated_tree(x, *fewer)[0][0, reach + 1 :].any()
