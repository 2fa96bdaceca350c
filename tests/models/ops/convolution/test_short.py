"""Short convolutions against a loop over tokens and taps: values, gradients, borders, streams."""

import pytest
import torch

from lra.models.ops.convolution.short import short_convolution
from tests.attention import compare, drawn
from tests.literal.convolutions import short_convolution as literal

TAPS = pytest.mark.parametrize(
    ("taps", "spacing"), [(1, 1), (2, 1), (3, 1), (4, 1), (3, 2), (2, 8)]
)
LENGTH = 11


@TAPS
@pytest.mark.parametrize("length", [1, 2, 3, 4, LENGTH])
@pytest.mark.parametrize("documents", [False, True])
def test_it_is_the_loop(taps, spacing, length, documents):
    given = [drawn(2, length, 5), drawn(5, taps, seed=1), drawn(5, seed=2)]
    x, weight, bias = (each.requires_grad_() for each in given)
    document = torch.tensor([[0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 2], [3] * 6 + [1] * 5])[:, :length]
    document = document if documents else None
    y, _ = short_convolution(x, weight, bias, None, document, spacing=spacing)
    wanted = literal(x, weight, bias, document, spacing)
    compare(y, wanted, [x, weight, bias], atol=1e-12)
