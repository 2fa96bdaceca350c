"""The recurrence in chunks: second gradients, steps."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lra.models.ops.recurrent.linear_recurrence import linear_recurrence
from tests.attention import drawn


def inputs(length, *, batch=2, width=3):
    a, b = drawn(batch, length, width, seed=1), drawn(batch, length, width, seed=2)
    a[:, length // 2] = 0.0  # a gate that forgets all
    return [x.requires_grad_() for x in (a, b, drawn(batch, width, seed=3))]


@pytest.mark.parametrize("length", [1, 7])
def test_gradients_equal_finite_differences_twice_over(length):
    given = inputs(length, batch=1, width=2)
    assert torch.autograd.gradcheck(linear_recurrence, given)
    assert torch.autograd.gradgradcheck(linear_recurrence, given)


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
