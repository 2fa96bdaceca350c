"""Which blocks of keys a query attends to: those of the highest scores, each query its own.

Choices have no gradient. Equal scores give the block that comes first, on every device. Scores are
formed for some queries at a time, and not kept.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lra.models.device_kind import device_kind
from lra.models.ops.numerics import full_precision, row_slices, sum_dtype
from lra.models.ops.sparse.block_table import BlockTable

PASS_ELEMENTS = {"cpu": 1 << 20}
"""Scores formed at once, by kind of device."""
PASS_ELEMENTS_ELSEWHERE = 1 << 25


def passes(length: int, each: int, device: torch.device) -> list[slice]:
    """Cut the queries into slices with a bounded number of scores, `each` per query."""
    elements = PASS_ELEMENTS.get(device_kind(device), PASS_ELEMENTS_ELSEWHERE)
    return [*row_slices(length, max(1, elements // max(1, each)))]


def block_selection(
    scores: Float[Tensor, "b g l m"], top: int, forced: Bool[Tensor, "#b #g l m"] | None = None
) -> Int[Tensor, "b g l t"]:
    """Return the blocks with the highest scores, `top` or all; -1 where fewer are visible.

    Args:
        scores: -inf for a block that may not be seen. Written over.
        top: Blocks to choose.
        forced: Blocks that are chosen whatever their scores are, if they may be seen.
    """
    if forced is not None:
        scores.masked_fill_(forced & (scores > -torch.inf), torch.inf)
    chosen = []
    for _ in range(min(top, scores.shape[-1])):
        best = scores.argmax(-1, keepdim=True)  # the first among equals
        chosen.append(best.masked_fill(scores.gather(-1, best) == -torch.inf, -1))
        scores.scatter_(-1, best, -torch.inf)
    return torch.cat(chosen, dim=-1)


@torch.no_grad()
def chosen_by_mean(
    q: Float[Tensor, "b h l k"],
    keys: Float[Tensor, "b h s k"],
    table: BlockTable,
    top: int,
    *,
    causal: bool,
) -> Int[Tensor, "b h l t"]:
    """Choose by the products of queries with the mean key of each block, the own block always.

    Args:
        q: Queries, by token.
        keys: Keys, by slot.
        table: Where they stand.
        top: Blocks to choose, including the query's block.
        causal: Whether later blocks are hidden.
    """
    with full_precision(q):
        means, chosen = table.means(keys), []
        for some in passes(q.shape[2], q.shape[0] * q.shape[1] * table.block_count, q.device):
            scores = q[:, :, some].to(sum_dtype(q)) @ means.mT
            scores.masked_fill_(~table.visible(some, causal=causal)[:, None], -torch.inf)
            home = (table.place[:, some, None] // table.block == table.numbers)[:, None]
            chosen.append(block_selection(scores, top, home))
    return torch.cat(chosen, dim=2)
