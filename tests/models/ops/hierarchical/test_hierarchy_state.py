"""H-Transformer token by token against the whole sequence, which is tested against its equation."""

import pytest
import torch
from torch import Tensor

from lra.models.contract.counting import count_operations
from lra.models.families.h_transformer import HTransformer
from lra.models.mixer import Flow, Layout
from lra.models.ops.hierarchical import state as hierarchy_state
from lra.models.ops.hierarchical.clusters import Plan
from lra.models.ops.hierarchical.state import ClusterState, attend_next, levels_for
from lra.models.state import size_bytes
from tests.attention import builder

BATCH, HEADS, WIDTH = 2, 3, 5


def heads(length: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(length)
    shape = (BATCH, HEADS, length, WIDTH)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3)]


def empty(block: int, memory: int) -> ClusterState:
    shape = (BATCH, HEADS, memory, WIDTH, WIDTH)
    return hierarchy_state.empty_clusters(shape, block, torch.zeros(0, dtype=torch.float64))


mixer = builder(HTransformer, width=16, heads=2, causal=True, block=4, relative_bias=True)


@pytest.mark.parametrize("block", [2, 6, 16])
def test_levels_are_those_of_the_sequence(block: int) -> None:
    for memory in [*range(1, 140), 1000, 4097]:
        assert levels_for(memory, block) == len(
            Plan.for_length(1, 1, memory, block, causal=True).levels
        )
        assert empty(block, memory).capacity >= memory


def test_state_and_operations_grow_with_the_levels() -> None:
    def cost(memory: int) -> tuple[int, int]:
        state = empty(4, memory)
        q, k, v = (x[:, :, 0] for x in heads(1))
        return size_bytes(tuple(state)), count_operations(lambda: attend_next(state, q, k, v))

    for levels, memory in ((1, 8), (2, 16), (6, 256), (12, 16384)):
        numbers = BATCH * HEADS * levels * (8 * 2 * WIDTH + WIDTH)
        slots = BATCH * HEADS * levels * 8
        assert cost(memory) == (8 * (numbers + BATCH), slots * 4 * WIDTH)


def test_what_it_cannot_remember() -> None:
    made = mixer()
    state = made.initial_state(1, 30)
    with pytest.raises(ValueError, match="up to 32 tokens: it has read 0 tokens and got 33 more"):
        made.extend(Flow(torch.zeros(1, 33, 16, dtype=torch.float64), state), Layout())
