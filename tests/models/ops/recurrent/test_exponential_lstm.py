"""The exponential LSTM against the loop of its paper: values, gradients, cuts, strong gates."""

import pytest
import torch

from lra.models.ops.recurrent.exponential_lstm import exponential_lstm
from tests.attention import Largest, drawn

HEADS, WIDTH = 2, 3


def inputs(length, strength=1.0):
    gates = strength * drawn(2, length, 4, HEADS, WIDTH, seed=1)
    return gates, drawn(HEADS, WIDTH, 4, WIDTH, seed=2)


def nothing(dtype=torch.float64):
    return torch.zeros(2, 4, HEADS, WIDTH, dtype=dtype)


@pytest.mark.parametrize("forget", [-60.0, 0.0, 60.0])
def test_float32_bears_gates_of_any_strength(forget):
    """Forget gates of log -60 and input gates of e^300: finite, and as in float64."""
    gates, recurrent = inputs(150)
    gates[:, :, 0] *= 300
    gates[:, :, 1] += forget
    results = []
    for dtype in (torch.float32, torch.float64):
        leaves = [x.to(dtype).requires_grad_() for x in (gates, recurrent)]
        y, _ = exponential_lstm(*leaves, nothing(dtype))
        results.append([y, *torch.autograd.grad(y.sum(), leaves)])
    for seen, wanted in zip(*results, strict=True):
        assert (seen - wanted).abs().max() < 1e-4 * wanted.abs().max()


def test_no_tensor_grows_with_the_square_of_the_length():
    leaves = [x.requires_grad_() for x in inputs(600)]
    with Largest() as seen:
        exponential_lstm(*leaves, nothing())[0].sum().backward()
    assert seen.elements <= 2 * leaves[0].numel()
