"""Memory and masks of softmax attention."""

import math

import torch
from torch import Tensor

from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Flow, Layout
from lra.models.ops.exact import visibility
from lra.models.state import reset
from tests.attention import builder, drawn

PREFIX = torch.tensor([3, 0])


def test_no_mask_is_made_where_the_direction_says_all() -> None:
    device = torch.device("cpu")
    assert visibility(Layout(), 7, causal=True, device=device) is None
    # all tokens see each other already, so a prefix adds nothing
    assert visibility(Layout(prefix=PREFIX), 7, causal=False, device=device) is None


MEMORY = 7


def window(mixer, x: Tensor) -> Tensor:
    """A window of the last MEMORY tokens, itself included, as loops over single numbers."""
    q, k, v = mixer.project(x, Layout())
    o = torch.zeros_like(v)
    for i in range(x.shape[1]):
        near = range(max(0, i - MEMORY + 1), i + 1)
        scores = torch.stack([(q[:, :, i] * k[:, :, j]).sum(-1) / math.sqrt(4) for j in near], -1)
        weights = scores.softmax(-1)
        o[:, :, i] = sum(weights[..., n, None] * v[:, :, j] for n, j in enumerate(near))
    return mixer.merge(o)


def test_rows_of_different_age_slide_by_themselves() -> None:
    """One row's memory is full and has come round, the other's is new."""
    mixer = builder(SoftmaxAttention, causal=True)()
    x = drawn(2, 24, 12)
    old = mixer.extend(Flow(x[:, :17], mixer.initial_state(2, MEMORY)), Layout()).state
    mixed = reset(old, mixer.initial_state(2, MEMORY), torch.tensor([True, False]))
    for cuts in ([7], [1] * 7, [2, 5]):
        state, seen = mixed, []
        for piece in x[:, 17:].split(cuts, dim=1):
            flow = mixer.extend(Flow(piece, state), Layout())
            state, seen = flow.state, [*seen, flow.x]
        y = torch.cat(seen, 1)
        young = window(mixer, x[:, 17:])[:1]
        torch.testing.assert_close(y[:1], young, atol=1e-12, rtol=0)
        full = window(mixer, x)[1:, 17:]
        torch.testing.assert_close(y[1:], full, atol=1e-12, rtol=0)
