"""Short convolutions against a loop over tokens and taps: values, gradients, borders, streams."""

import pytest
import torch

from lra.models.contract.counting import saved_bytes
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


@TAPS
@pytest.mark.parametrize("cut", [[LENGTH], [1] * LENGTH, [4, 1, 6]])
def test_a_stream_continues_behind_its_last_inputs(taps, spacing, cut):
    x, weight = drawn(2, LENGTH, 5).requires_grad_(), drawn(5, taps, seed=1).requires_grad_()
    before, outputs = torch.zeros(2, spacing * (taps - 1), 5, dtype=torch.float64), []
    for piece in x.split(cut, dim=1):
        y, before = short_convolution(piece, weight, before=before, spacing=spacing)
        outputs.append(y)
    wanted = literal(x, weight, spacing=spacing)
    compare(torch.cat(outputs, dim=1), wanted, [x, weight], atol=1e-12)


def test_what_a_stream_keeps_is_of_its_last_document():
    x, weight = drawn(1, 6, 2), drawn(2, 4, seed=1)
    document = torch.tensor([[0, 0, 0, 0, 1, 1]])
    _, after = short_convolution(x, weight, document=document)
    assert torch.equal(after, torch.cat((torch.zeros(1, 1, 2), x[:, 4:]), dim=1))
    more = drawn(1, 2, 2, seed=2)
    y, _ = short_convolution(more, weight, before=after, document=torch.tensor([[1, 1]]))
    wanted = literal(torch.cat((x[:, 4:], more), dim=1), weight)[:, 2:]
    torch.testing.assert_close(y, wanted, atol=1e-12, rtol=0)


def test_autograd_keeps_the_inputs_once():
    x, weight = torch.ones(4, 256, 32).requires_grad_(), torch.ones(32, 4).requires_grad_()
    kept = saved_bytes(lambda: short_convolution(x, weight)[0], [weight])
    assert kept <= 1.1 * x.nbytes
