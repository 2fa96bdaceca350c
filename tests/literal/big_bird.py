"""Big Bird: Zaheer et al. 2020, arXiv:2007.14062, section 2; a mask of the blocks of its plan."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from tests.literal.heads import attended

USUAL = {"width": [8], "heads": [2], "masks": ["", "keep"], "small": [False, True]}
GRIDS = [
    {**USUAL, "causal": [False, True], "block": [4], "random_blocks": [0, 2, 40],
     "positions": ["none", "rotary", "alibi"], "length": [1, 20, 28, 61, 101], "max_length": [101]},
    {**USUAL, "block": [16], "random_blocks": [3], "plan": ["uniform", "official", "verbatim"],
     "length": [270], "max_length": [300]},
    {**USUAL, "block": [4], "random_blocks": [2], "padding": ["original"], "length": [64, 61]},
]  # fmt: skip


def big_bird_pairs(
    blocks_seen: Sequence[Sequence[Sequence[int]]], length: int, block: int, *, causal: bool
) -> Bool[Tensor, "h l l"]:
    """Return who sees whom in Big Bird, from the blocks that each row of blocks sees.

    Args:
        blocks_seen: for every head and every block, the blocks that it sees. The first and the last
            block see all besides, unless causal.
        length: tokens; the last block may be in part filled.
        block: tokens of a block.
        causal: see no later token.
    """
    blocks = -(-length // block)
    sees = torch.zeros(len(blocks_seen), blocks, blocks, dtype=torch.bool)
    for head, rows in enumerate(blocks_seen):
        for row, entries in enumerate(rows):
            sees[head, row, list(entries)] = True
            if not causal and row in {0, blocks - 1}:
                sees[head, row] = True
    sees = sees.repeat_interleave(block, 1).repeat_interleave(block, 2)[:, :length, :length]
    return sees.tril() if causal else sees


def planned(mixer: Any, case: Any, length: int) -> Bool[Tensor, "h l l"]:
    """Return who sees whom by the plan of a length."""
    count = -(-length // case.block)
    numbers = torch.tensor([count]), torch.arange(count)
    lists = mixer.core.pattern.lists(mixer.core.draws, *numbers)
    table = [
        [row[kept].tolist() for row, kept in zip(*pair, strict=True)]
        for pair in zip(lists.blocks[0], lists.seen[0], strict=True)
    ]
    return big_bird_pairs(table, length, case.block, causal=case.causal)


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Attend to the blocks of the plan, which is that of each row's last real token."""
    length = x.shape[1]
    sees = torch.zeros(2, case.heads, length, length, dtype=torch.bool)
    for row in range(2):
        end = length
        if case.keep is not None and case.padding == "exact":
            end = int((case.keep[row] * torch.arange(1, length + 1)).max())
        if end:
            sees[row, :, :end, :end] = planned(mixer, case, end)
    return attended(mixer, x, case, sees)
