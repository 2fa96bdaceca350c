"""The tree of short convolutions against its loops: values, gradients, documents, streams."""

import math

import pytest
import torch

from lra.models.ops.convolution.tree import depth_for, dilated_tree
from tests.attention import compare, drawn
from tests.literal.convolutions import dilated_tree as literal

LENGTH = 13
TREES = pytest.mark.parametrize(("taps", "depth"), [(2, 1), (2, 4), (3, 3), (4, 2)])


def given(taps: int, depth: int, length: int = LENGTH):
    x = drawn(2, length, 5)
    low, high = (drawn(5, taps, seed=seed) for seed in (1, 2))
    return [each.requires_grad_() for each in (x, low, high, drawn(5, depth + 2, seed=3))]


@TREES
@pytest.mark.parametrize("length", [1, 2, 3, 4, LENGTH])
@pytest.mark.parametrize("documents", [False, True])
def test_it_is_its_loops(taps, depth, length, documents):
    leaves = given(taps, depth, length)
    document = torch.tensor([[0] * 4 + [1] * 2 + [2] * 7, [3] * 6 + [1] * 7])[:, :length]
    document = document if documents else None
    y, _ = dilated_tree(*leaves, document=document)
    compare(y, literal(*leaves, document), leaves, atol=1e-10)


@TREES
def test_a_document_is_as_if_it_were_alone(taps, depth):
    x, *weights = given(taps, depth)
    y, _ = dilated_tree(x, *weights, document=torch.tensor([[5] * 4 + [1] * 9] * 2))
    for part in (slice(0, 4), slice(4, LENGTH)):
        alone, _ = dilated_tree(x[:, part], *weights)
        torch.testing.assert_close(y[:, part], alone, atol=1e-12, rtol=0)


@TREES
@pytest.mark.parametrize("cut", [[LENGTH], [1] * LENGTH, [5, 1, 7]])
def test_a_stream_continues_behind_the_last_inputs_of_each_level(taps, depth, cut):
    leaves = given(taps, depth)
    x, *weights = leaves
    before = [torch.zeros(2, (taps - 1) << level, 5).double() for level in range(depth)]
    outputs = []
    for piece in x.split(cut, dim=1):
        y, before = dilated_tree(piece, *weights, before=before)
        outputs.append(y)
    compare(torch.cat(outputs, dim=1), literal(*leaves), leaves, atol=1e-10)
    assert sum(each.shape[1] for each in before) == (taps - 1) * (2**depth - 1)


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
