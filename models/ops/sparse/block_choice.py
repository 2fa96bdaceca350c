"""The choice of key blocks with the highest scores, separately for each query.

Choices have no gradient. Among equal scores, the first block is chosen on every device. Scores are
computed for a part of the queries at a time and not stored.
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
    """Return slices of `length` queries with a bounded number of scores, `each` per query."""
    elements = PASS_ELEMENTS.get(device_kind(device), PASS_ELEMENTS_ELSEWHERE)
    return [*row_slices(length, max(1, elements // max(1, each)))]


def block_selection(
    scores: Float[Tensor, "b g l m"], top: int, forced: Bool[Tensor, "#b #g l m"] | None = None
) -> Int[Tensor, "b g l t"]:
    """Return the `top` blocks with the highest scores of each query; -1 if fewer are visible.

    Args:
        scores: Scores of m blocks, -inf for hidden blocks; they are overwritten.
        top: Number of blocks to choose.
        forced: True for blocks that are always chosen if they are visible.
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
    """Return each query's block, and the blocks whose mean keys have the highest products with it.

    Args:
        q: Queries of l tokens.
        keys: Keys in s slots of blocks.
        table: The slot of each token.
        top: Number of blocks to choose, including the query's block.
        causal: Whether later blocks are hidden.
    """
    with full_precision(q):
        means, chosen = table.means(keys), []
        for part in passes(q.shape[2], q.shape[0] * q.shape[1] * table.block_count, q.device):
            scores = q[:, :, part].to(sum_dtype(q)) @ means.mT
            scores.masked_fill_(~table.visible(part, causal=causal)[:, None], -torch.inf)
            is_home = (table.place[:, part, None] // table.block == table.numbers)[:, None]
            chosen.append(block_selection(scores, top, is_home))
    return torch.cat(chosen, dim=2)
