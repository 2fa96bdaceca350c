"""What a causal hierarchy of clusters remembers along time, and how one more token is attended to.

A token sees, at level 0, its own block and the one before; at a level above, the one before alone,
less a quadrant: see `lra.models.ops.hierarchical.clusters`. So two blocks of C clusters per level
are enough: the last one that is full and the one that is being filled, each cluster as the sum of
its tokens. Block B of a level stands in half B mod 2 of its slots, so nothing is ever moved; what a
slot held two blocks ago is masked until a new cluster begins there. Of the queries, the last first
token of a cluster is kept per level. All levels together are one softmax, a cluster of 2^a tokens
counting 2^a times.

State: `(keys, values, queries, seen)` with shapes (b, h, levels, 2 C, k), (b, h, levels, 2 C, v),
(b, h, levels, k) and (b,), zeros = empty. Rows may be at different positions.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from lra.models.ops.numerics import sum_dtype


class ClusterState(NamedTuple):
    """Sums of clusters, first queries and the number of tokens."""

    keys: Float[Tensor, "b h a s k"]
    values: Float[Tensor, "b h a s v"]
    queries: Float[Tensor, "b h a k"]
    seen: Int[Tensor, " b"]

    @property
    def capacity(self) -> int:
        """Tokens for which there are levels enough: the highest one holds two blocks."""
        levels, slots = self.keys.shape[2:4]
        return int(slots) << (int(levels) - 1)


def levels_for(memory: int, block: int) -> int:
    """Return how many levels are needed so that two blocks of the highest hold `memory` tokens."""
    return 1 + max(0, math.ceil(math.log2(-(-max(memory, 1) // block))) - 1)


def empty_clusters(shape: tuple[int, int, int, int, int], block: int, like: Tensor) -> ClusterState:
    """Return the state of no tokens; `shape` = (b, h, memory, k, v)."""
    batch, heads, memory, key_width, value_width = shape
    levels, like = levels_for(memory, block), like.to(sum_dtype(like))
    return ClusterState(
        like.new_zeros(batch, heads, levels, 2 * block, key_width),
        like.new_zeros(batch, heads, levels, 2 * block, value_width),
        like.new_zeros(batch, heads, levels, key_width),
        torch.zeros(batch, dtype=torch.int64, device=like.device),
    )


def state_behind(
    state: ClusterState,
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
) -> ClusterState:
    """Return the state after a whole prompt, given an empty state."""
    length, (levels, slots) = q.shape[2], state.keys.shape[2:4]
    block = slots // 2
    sums = [F.pad(x, (0, 0, 0, state.capacity - length)) for x in (k, v)]
    stored: tuple[list[Tensor], list[Tensor]] = ([], [])
    queries = []
    for level in range(levels):
        last = (length - 1) >> level  # the cluster of the last token
        queries.append(q[:, :, last << level])
        block_index = last // block
        for side, by_level in zip(sums, stored, strict=True):
            blocks = torch.unflatten(side, 2, (-1, block))
            # in block 0 there is none before: what is taken instead is masked
            pair = (
                blocks[:, :, block_index],
                blocks[:, :, block_index - 1 if block_index else block_index + 1],
            )
            by_level.append(torch.cat(pair if block_index % 2 == 0 else pair[::-1], dim=2))
        if level + 1 < levels:
            sums = [torch.unflatten(side, 2, (-1, 2)).sum(3) for side in sums]
    keys, values = (torch.stack(side, 2) for side in stored)
    like = state.keys
    return ClusterState(
        keys.to(like.dtype),
        values.to(like.dtype),
        torch.stack(queries, 2).to(like.dtype),
        state.seen + length,
    )


def attend_next(
    state: ClusterState,
    q: Float[Tensor, "b h k"],
    k: Float[Tensor, "b h k"],
    v: Float[Tensor, "b h v"],
    *,
    bias: Float[Tensor, "h c _"] | None = None,
    dropout: float = 0.0,
) -> tuple[Float[Tensor, "b h v"], ClusterState]:
    """Attend from the next token to itself and the remembered clusters; return o and state.

    Arguments as in `hierarchical_attention`.
    """
    levels, slots = state.keys.shape[2:4]
    block = slots // 2
    size = 2 ** torch.arange(levels, device=q.device)
    cluster = state.seen[:, None] // size
    begins = state.seen[:, None] % size == 0
    slot = torch.arange(slots, device=q.device)
    here = (slot == (cluster % slots)[..., None])[:, None, ..., None]
    restarts = here & begins[:, None, :, None, None]

    def added(sums: Tensor, x: Tensor) -> Tensor:
        return sums.masked_fill(restarts, 0) + here * x[:, :, None, None].to(sums.dtype)

    keys, values = added(state.keys, k), added(state.values, v)
    first = begins[:, None, :, None]
    queries = torch.where(first, q[:, :, None].to(state.queries.dtype), state.queries)

    inside, column = cluster % block, slot % block
    same_block = slot // block == (cluster // block % 2)[..., None]
    before = ~same_block & (cluster >= block)[..., None]
    seen_below = (inside < block // 2)[..., None] & (column >= block // 2)
    visible = before & ~seen_below
    visible[:, 0] = before[:, 0] | same_block[:, 0] & (column <= inside[:, :1])

    share = (1 / size.to(keys.dtype))[:, None, None]
    scores = ((keys * share) @ queries[..., None])[..., 0] * q.shape[-1] ** -0.5
    scores = scores + size.to(keys.dtype).log()[:, None]
    if bias is not None:
        scores = scores + bias[:, inside[..., None], column + block * same_block].transpose(0, 1)
    scores = scores.masked_fill(~visible[:, None], torch.finfo(scores.dtype).min)
    weights = F.dropout(scores.flatten(2).softmax(-1), dropout)
    o = (weights[:, :, None] @ (values * share).flatten(2, 3))[:, :, 0]
    return o.to(v.dtype), ClusterState(keys, values, queries, state.seen + 1)
