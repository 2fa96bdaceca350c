"""The exponential LSTM against the loop of its paper: values, gradients, cuts, strong gates."""

import pytest
import torch

from lra.models.ops.recurrent.exponential_lstm import exponential_lstm
from tests import attention
from tests.attention import Largest, drawn
from tests.literal import recurrent as reference

HEADS, WIDTH = 2, 3


def inputs(length, strength=1.0):
    gates = strength * drawn(2, length, 4, HEADS, WIDTH, seed=1)
    return gates, drawn(HEADS, WIDTH, 4, WIDTH, seed=2)


def nothing(dtype=torch.float64):
    return torch.zeros(2, 4, HEADS, WIDTH, dtype=dtype)


def compare(length, *, at_once=256, strength=1.0, **facts):
    leaves = [x.requires_grad_() for x in inputs(length, strength)]
    seen, _ = exponential_lstm(*leaves, nothing(), **facts)
    wanted = reference.exponential_lstm(*leaves, **facts)
    keep = facts.get("keep")
    real = 1 if keep is None else keep[..., None, None]
    attention.compare(seen * real, wanted, leaves, rtol=1e-12, looser=100)


@pytest.mark.parametrize("length", [1, 7, 8, 9, 29])
@pytest.mark.parametrize("strength", [1.0, 6.0])
def test_it_is_the_loop(length, strength, monkeypatch):
    monkeypatch.setattr("lra.models.ops.recurrent.exponential_lstm.TOKENS_AT_ONCE", 8)
    compare(length, strength=strength)


def behind(*real):
    """Return a mask of rows of nine tokens, so many of which are real."""
    return torch.arange(9) < torch.tensor(real)[:, None]


@pytest.mark.parametrize("keep", [behind(9, 5), behind(1, 8)])
def test_padding_leaves_the_state_as_it_was(keep):
    compare(9, keep=keep)
    gates, recurrent = inputs(9)
    _, after = exponential_lstm(gates, recurrent, nothing(), keep=keep)
    for row, real in enumerate(keep.sum(1)):
        alone = gates[row : row + 1, :real], recurrent, nothing()[:1]
        torch.testing.assert_close(after[row], exponential_lstm(*alone)[1][0], atol=0, rtol=1e-14)


def test_a_row_of_padding_alone_hands_on_what_it_got():
    gates, recurrent = inputs(9)
    _, state = exponential_lstm(gates, recurrent, nothing())
    for before in (state, nothing()):
        y, after = exponential_lstm(gates, recurrent, before, keep=behind(0, 0))
        assert torch.equal(after, before)
        assert y.isfinite().all()


def test_where_a_document_begins_nothing_is_seen_of_the_last():
    begins = torch.zeros(2, 9, dtype=torch.bool)
    begins[0, [3, 4]] = begins[1, 8] = True
    compare(9, begins=begins)
    compare(9, begins=begins, keep=behind(6, 9))


@pytest.mark.parametrize("cut", [1, 4, 7])
def test_segments_with_the_state_handed_on_are_one_pass(cut):
    gates, recurrent = (x.requires_grad_() for x in inputs(15))
    whole, last = exponential_lstm(gates, recurrent, nothing())
    outputs, state = [], nothing()
    for segment in gates.split(cut, 1):
        y, state = exponential_lstm(segment, recurrent, state)
        outputs.append(y)
    torch.testing.assert_close(state, last, atol=1e-14, rtol=0)
    attention.compare(torch.cat(outputs, 1), whole, [gates, recurrent], atol=1e-14, looser=100)


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
