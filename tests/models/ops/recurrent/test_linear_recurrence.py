"""The recurrence in chunks against the loop: values, gradients, second gradients, steps."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lra.models.ops.recurrent.layer import reading_order
from lra.models.ops.recurrent.linear_recurrence import linear_recurrence
from tests.attention import compare, drawn
from tests.literal.recurrent import linear_recurrence as literal


def inputs(length, *, batch=2, width=3):
    a, b = drawn(batch, length, width, seed=1), drawn(batch, length, width, seed=2)
    a[:, length // 2] = 0.0  # a gate that forgets all
    return [x.requires_grad_() for x in (a, b, drawn(batch, width, seed=3))]


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 9, 15, 16, 17, 50])
def test_it_is_the_loop(length):
    given = inputs(length)
    found, wanted = linear_recurrence(*given), literal(*given)
    compare(found, wanted, given, rtol=1e-12)


@pytest.mark.parametrize("length", [1, 4, 17])
def test_a_constant_factor_is_the_same_at_every_token(length):
    _, b, start = (torch.complex(x, x.flip(0)).detach().requires_grad_() for x in inputs(length))
    a = torch.complex(drawn(3, seed=6), drawn(3, seed=7)).requires_grad_()
    given = [a, b, start]
    torch.testing.assert_close(
        linear_recurrence(*given), literal(a.expand(b.shape), b, start), atol=1e-12, rtol=1e-12
    )
    assert torch.autograd.gradcheck(linear_recurrence, given)
    assert length > 5 or torch.autograd.gradgradcheck(linear_recurrence, given)  # by the square


@pytest.mark.parametrize("length", [1, 7])
def test_gradients_equal_finite_differences_twice_over(length):
    given = inputs(length, batch=1, width=2)
    assert torch.autograd.gradcheck(linear_recurrence, given)
    assert torch.autograd.gradgradcheck(linear_recurrence, given)


@pytest.mark.parametrize("length", [1, 7])
@pytest.mark.parametrize("turned", ["a", "b", "start", "a b start"])
def test_gradients_of_complex_numbers_equal_finite_differences(length, turned):
    """Of all three, or of one beside real ones, whose gradients are real."""
    given = [
        (x * (1 + 0.5j * drawn(*x.shape, seed=5)) if name in turned.split() else x).detach()
        for name, x in zip(("a", "b", "start"), inputs(length, batch=1, width=2), strict=True)
    ]
    given = [x.requires_grad_() for x in given]
    torch.testing.assert_close(linear_recurrence(*given), literal(*given), atol=1e-12, rtol=0)
    assert torch.autograd.gradcheck(linear_recurrence, given)
    assert torch.autograd.gradgradcheck(linear_recurrence, given)


def test_long_streams_of_gates_neither_vanish_nor_overflow():
    """Products of 4,096 gates are far below the smallest number, and are never divided by."""
    f = torch.rand(1, 4096, 4, generator=torch.Generator().manual_seed(0))
    z = drawn(1, 4096, 4).float()
    found = linear_recurrence(f, (1 - f) * z, torch.zeros(1, 4))
    wanted = literal(f.double(), ((1 - f) * z).double(), torch.zeros(1, 4).double())
    assert (found - wanted).abs().max() < 1e-5


class RecurrenceSteps(TorchDispatchMode):
    """Counts the steps c = a c + b."""

    def __init__(self):
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.number += func.overloadpacket is torch.ops.aten.addcmul
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("length", [100, 10_000])
def test_there_are_three_times_the_square_root_of_the_length_steps(length):
    a = torch.rand(1, length, 2)
    with RecurrenceSteps() as seen:
        linear_recurrence(a, a, a[:, 0])
    assert seen.number == 3 * length**0.5 - 1


@pytest.mark.parametrize("backwards", [False, True])
def test_padding_is_read_behind_real_tokens(backwards):
    keep = torch.tensor([[True, False, True, True, False], [False] * 5, [True] * 5])
    x = torch.arange(5.0).expand(3, 5)[..., None]
    order = reading_order(keep, backwards=backwards)
    real = [[0.0, 2, 3], [], [0, 1, 2, 3, 4]]
    for row, (seen, wanted) in enumerate(zip(order.reorder(x), real, strict=True)):
        assert seen[: len(wanted), 0].tolist() == (wanted[::-1] if backwards else wanted), row
    torch.testing.assert_close(order.back(order.reorder(x)), x, atol=0, rtol=0)
    plain = reading_order(None, backwards=backwards)
    torch.testing.assert_close(plain.reorder(x), x.flip(1) if backwards else x, atol=0, rtol=0)
    torch.testing.assert_close(plain.back(plain.reorder(x)), x, atol=0, rtol=0)
