"""Hierarchical attention as its equation: all pairs of tokens, each scored at its level.

What tests compare the fast form of this folder with: it forms the n x n scores, finds every
cluster by a loop over its tokens, and imports none of ours.

Source: H-Transformer-1D, Zhu and Soricut 2021, arXiv:2107.11906.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tests.literal.heads import merged, projected


def cluster_vectors(
    x: Float[Tensor, "b h l c"], level: int, keep: Bool[Tensor, "b l"], *, first: bool = False
) -> Float[Tensor, "b h l c"]:
    """Return for every token the vector of its cluster of 2^level tokens, aligned at token 0.

    It is the mean of the cluster's real tokens, or the first of them; 0 where there is none.
    """
    rows = []
    for row, real in zip(x, keep, strict=True):
        tokens = []
        for i in range(x.shape[2]):
            start = i >> level << level
            inside = [j for j in range(start, start + (1 << level)) if j < len(real) and real[j]]
            inside = inside[:1] if first else inside
            tokens.append(row[:, inside].mean(1) if inside else torch.zeros_like(row[:, i]))
        rows.append(torch.stack(tokens, 1))
    return torch.stack(rows)


def hierarchical_attention(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    *,
    block: int,
    causal: bool = False,
    keep: Bool[Tensor, "b l"] | None = None,
    bias: Float[Tensor, "h w"] | None = None,
) -> Float[Tensor, "b h l v"]:
    """Return softmax over all pairs of tokens, each scored at the level where their blocks meet.

    Level i has clusters of 2^i tokens and blocks of `block` clusters. Two tokens meet at the first
    level where their blocks are one or neighbours; their score is the product of their clusters'
    mean query and mean key, over sqrt(d). Causal: a query is its cluster's first instead of the
    mean. A query that sees nothing gets 0.

    Args:
        q: queries.
        k: keys.
        v: values.
        block: clusters of a block, 1 or more.
        causal: see no later token.
        keep: what is no padding.
        bias: added to scores by distance in clusters, from 1 - 2 block to 2 block - 1, where it
            stays: w = 4 block - 1.
    """
    length, scale = q.shape[2], q.shape[-1] ** -0.5
    keep = torch.ones(len(q), length, dtype=torch.bool) if keep is None else keep
    position = torch.arange(length)
    scores = torch.zeros(*q.shape[:3], length, dtype=q.dtype)
    waiting = torch.ones(length, length, dtype=torch.bool)
    for level in range(max(1, length.bit_length())):
        blocks, cluster = position // (block << level), position >> level
        meet = (blocks[:, None] - blocks).abs() <= 1
        now = meet & waiting
        waiting = ~meet
        a, b = q, k
        if level:
            a = cluster_vectors(q, level, keep, first=causal)
            b = cluster_vectors(k, level, keep)
        level_scores = a @ b.mT * scale
        if bias is not None:
            offset = (cluster - cluster[:, None]).clamp(1 - 2 * block, 2 * block - 1)
            level_scores = level_scores + bias[:, offset + 2 * block - 1]
        scores = torch.where(now, level_scores, scores)
    visible = keep[:, None, None] & (position <= position[:, None] if causal else True)
    scores = scores.masked_fill(~visible, -torch.inf)
    return scores.softmax(-1).nan_to_num(0) @ v


GRIDS = [
    {
        "width": [15],
        "causal": [False, True],
        "block": [2, 4, 8, 64],
        "relative_bias": [False, True],
        "masks": ["", "keep"],
        "length": [1, 17, 33, 40],
    }
]


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Return the equation between the projections."""
    o = hierarchical_attention(
        *projected(mixer, x, case), block=case.block, causal=case.causal, keep=case.keep,
        bias=mixer.core.relative if case.relative_bias else None,
    )  # fmt: skip
    return merged(mixer, o, x)
