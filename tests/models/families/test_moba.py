"""What mixture of block attention remembers."""

import pytest
import torch

from lra.models.families.moba import Moba
from lra.models.mixer import Flow, Layout
from tests.attention import builder, drawn
from tests.literal.heads import attention_in_sight

WIDTH, HEADS = 12, 3


def built(*, family=Moba, dtype=torch.float64, **given):
    return builder(family)(**given).to(dtype)


@pytest.mark.parametrize(("memory", "blocks"), [(1, 1), (2, 2), (5, 2), (6, 3), (9, 3)])
def test_a_memory_is_whole_blocks_that_hold_the_last_tokens(memory, blocks):
    mixer, x = built(causal=True, block=4, top=99), drawn(1, 30, WIDTH)
    state = mixer.initial_state(1, memory)
    assert state[0].shape == (1, HEADS, 4 * blocks, WIDTH // HEADS)
    q, k, v = mixer.project(x, Layout())
    i, j = torch.arange(30)[:, None], torch.arange(30)
    sees = (j <= i) & (i // 4 - j // 4 < blocks)
    wanted = mixer.merge(attention_in_sight(q, k, v, sees))
    for piece in x.split([11, 1, 1, 17], dim=1):
        flow = mixer.extend(Flow(piece, state), Layout())
        state, n = flow.state, piece.shape[1]
        torch.testing.assert_close(flow.x, wanted[:, :n], atol=1e-12, rtol=0)
        wanted = wanted[:, n:]
