"""The exponential moving average against its recurrence, and both sides against a double sum."""

import math

import pytest
import torch

from lra.models.ops.state_space.moving_average import MovingAverage
from tests.attention import compare, drawn
from tests.literal import state_space as reference

CHANNELS, STATES = 3, 2
LENGTHS = pytest.mark.parametrize("length", [1, 2, 7, 33])


def built(directions, truncation=None):
    """Return an average far from where it starts, and what its recurrences are made of."""
    parts = MovingAverage(CHANNELS, STATES, directions, truncation).double()
    with torch.no_grad():
        for number, parameter in enumerate(parts.parameters()):
            parameter.copy_(drawn(*parameter.shape, seed=number))
    p = parts.delta.sigmoid()
    q, readout = 1 - p * parts.alpha.sigmoid(), parts.gamma / math.sqrt(STATES)
    return parts, q, p * parts.beta, readout


@LENGTHS
def test_one_direction_is_the_recurrence(length):
    parts, q, entry, readout = built(1)
    x = drawn(2, length, CHANNELS).requires_grad_()
    wanted = reference.moving_average(x.mT, q[0], entry[0], readout[0]).mT + parts.omega * x
    compare(parts(x, None)[0], wanted, [x, *parts.parameters()], atol=1e-10)


@LENGTHS
@pytest.mark.parametrize("truncation", [None, 1, 5])
def test_both_directions_count_the_token_itself(length, truncation):
    parts, q, entry, readout = built(2, truncation)
    x = drawn(2, length, CHANNELS).requires_grad_()
    kernels = [reference.exponential(r * e, each, length)
               for r, e, each in zip(readout, entry, q, strict=True)]  # fmt: skip
    rows = []
    for t in range(length):
        y = parts.omega * x[:, t]
        for j in range(length):
            for kernel, lag in zip(kernels, (t - j, j - t), strict=True):
                if 0 <= lag < (truncation or length):
                    y = y + kernel[:, lag] * x[:, j]
        rows.append(y)
    wanted = torch.stack(rows, dim=1)
    compare(parts(x, None)[0], wanted, [x, *parts.parameters()], atol=1e-10)


@pytest.mark.parametrize("cut", [[9], [1] * 9, [4, 1, 4]])
def test_however_a_stream_is_cut_the_average_is_the_same(cut):
    parts, *_ = built(1)
    x, outputs = drawn(2, 9, CHANNELS).requires_grad_(), []
    state = x.new_zeros(2, CHANNELS, STATES)
    for piece in x.split(cut, dim=1):
        y, state = parts(piece, state)
        outputs.append(y)
    compare(torch.cat(outputs, 1), parts(x, None)[0], [x, *parts.parameters()], atol=1e-10)
