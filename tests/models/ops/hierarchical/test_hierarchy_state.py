"""H-Transformer token by token against the whole sequence, which is tested against its equation."""

import pytest
import torch
from torch import Tensor

from lra.models.contract.counting import count_operations
from lra.models.families.h_transformer import HTransformer
from lra.models.mixer import Flow, Layout
from lra.models.ops.hierarchical import state as hierarchy_state
from lra.models.ops.hierarchical.attention import hierarchical_attention
from lra.models.ops.hierarchical.clusters import Plan
from lra.models.ops.hierarchical.state import Remembered, attend_next, filled, levels_for
from lra.models.state import size_bytes
from tests.attention import builder

BATCH, HEADS, WIDTH = 2, 3, 5


def heads(length: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(length)
    shape = (BATCH, HEADS, length, WIDTH)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3)]


def empty(block: int, memory: int) -> Remembered:
    shape = (BATCH, HEADS, memory, WIDTH, WIDTH)
    return hierarchy_state.empty(shape, block, torch.zeros(0, dtype=torch.float64))


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("block", "length"), [(2, 37), (4, 64), (6, 101)])
def test_tokens_one_by_one_are_the_sequence(block: int, length: int, biased: bool) -> None:
    q, k, v = heads(length)
    bias = None
    if biased:
        generator = torch.Generator().manual_seed(1)
        bias = torch.randn(HEADS, block, 3 * block, generator=generator, dtype=torch.float64)
    wanted = hierarchical_attention(q, k, v, block=block, causal=True, bias=bias)
    state, found = empty(block, length), []
    for t in range(length):
        o, state = attend_next(state, q[:, :, t], k[:, :, t], v[:, :, t], bias=bias)
        found.append(o)
    torch.testing.assert_close(torch.stack(found, 2), wanted)


@pytest.mark.parametrize("block", [2, 4])
@pytest.mark.parametrize("prompt", [1, 4, 7, 32, 33, 50])
def test_a_prompt_leaves_what_its_tokens_would(block: int, prompt: int) -> None:
    q, k, v = heads(64)
    state = filled(empty(block, 64), *(x[:, :, :prompt] for x in (q, k, v)))
    wanted = hierarchical_attention(q, k, v, block=block, causal=True)
    for t in range(prompt, 64):
        o, state = attend_next(state, q[:, :, t], k[:, :, t], v[:, :, t])
        torch.testing.assert_close(o, wanted[:, :, t])


mixer = builder(HTransformer, width=16, heads=2, causal=True, block=4, relative_bias=True)


@pytest.mark.parametrize("block", [2, 6, 16])
def test_levels_are_those_of_the_sequence(block: int) -> None:
    for memory in [*range(1, 140), 1000, 4097]:
        assert levels_for(memory, block) == len(Plan.of(1, 1, memory, block, causal=True).levels)
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
    with pytest.raises(ValueError, match="reach 32 tokens: it has seen 0 and 33 more came"):
        made.extend(Flow(torch.zeros(1, 33, 16, dtype=torch.float64), state), Layout())
