"""The state of a causal hierarchy of clusters along time, and the attention of the next token.

At level 0, a token attends to its own block and the block before; at higher levels only to the
block before, without a quadrant (see `lra.models.ops.hierarchical.clusters`). So the state stores
two blocks of C clusters per level: the last full block, and the block that is being filled. Each
cluster is the sum of its tokens. Block B of a level is in half B mod 2 of the level's slots, so
that nothing is moved; old clusters are masked until new ones replace them. For each level, the
state also stores the query of the first token of the current cluster. All levels form one softmax,
in which a cluster of 2^a tokens counts 2^a times.

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
    """Return the state after all l tokens of a prompt; `state` must be empty."""
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
            # Block 0 has no block before it: the block taken instead is masked.
            pair = (
                blocks[:, :, block_index],
                blocks[:, :, block_index - 1 if block_index else block_index + 1],
            )
            # Block B is in half B mod 2 of the slots.
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
    """Return the output of the next token, which attends to itself and to the state's clusters.

    The new state, with the token added, is also returned. Arguments are as in
    `hierarchical_attention`.
    """
    levels, slots = state.keys.shape[2:4]
    block = slots // 2
    size = 2 ** torch.arange(levels, device=q.device)  # tokens of a cluster, by level
    cluster = state.seen[:, None] // size  # the token's cluster in each level
    begins = state.seen[:, None] % size == 0  # whether the token is its first one
    slot = torch.arange(slots, device=q.device)
    is_current = (slot == (cluster % slots)[..., None])[:, None, ..., None]
    restarts = is_current & begins[:, None, :, None, None]

    def add_token(sums: Tensor, x: Tensor) -> Tensor:
        return sums.masked_fill(restarts, 0) + is_current * x[:, :, None, None].to(sums.dtype)

    keys, values = add_token(state.keys, k), add_token(state.values, v)
    first = begins[:, None, :, None]
    queries = torch.where(first, q[:, :, None].to(state.queries.dtype), state.queries)

    index_in_block, column = cluster % block, slot % block
    same_block = slot // block == (cluster // block % 2)[..., None]
    in_previous_block = ~same_block & (cluster >= block)[..., None]
    # The level below covers the quadrant between the adjacent halves of neighbouring blocks.
    covered_below = (index_in_block < block // 2)[..., None] & (column >= block // 2)
    visible = in_previous_block & ~covered_below  # at level 0 also the own block, up to the token
    visible[:, 0] = in_previous_block[:, 0] | same_block[:, 0] & (column <= index_in_block[:, :1])

    share = (1 / size.to(keys.dtype))[:, None, None]  # makes sums means
    scores = ((keys * share) @ queries[..., None])[..., 0] * q.shape[-1] ** -0.5
    scores = scores + size.to(keys.dtype).log()[:, None]
    if bias is not None:  # columns of the block before come first
        scores = scores + bias[:, index_in_block[..., None], column + block * same_block].transpose(
            0, 1
        )
    scores = scores.masked_fill(~visible[:, None], torch.finfo(scores.dtype).min)
    weights = F.dropout(scores.flatten(2).softmax(-1), dropout)
    o = (weights[:, :, None] @ (values * share).flatten(2, 3))[:, :, 0]
    return o.to(v.dtype), ClusterState(keys, values, queries, state.seen + 1)
