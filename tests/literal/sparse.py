"""Sparse attention as its definition: all scores, and the pairs that the paper names.

A pattern is a function that returns who sees whom; `attention_in_sight` attends accordingly. What
tests compare the fast forms of this folder with: it forms the n x n scores and imports none of
ours.

Sources: Sparse Transformer, Child et al. 2019, arXiv:1904.10509, section 4; Big Bird, Zaheer et al.
2020, arXiv:2007.14062, section 2; blocks, Parmar et al. 2018, arXiv:1802.05751; the code of the
Long Range Arena, Tay et al. 2021, arXiv:2011.04006; ALiBi, Press et al. 2022, arXiv:2108.12409.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def attention_in_sight(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    sees: Bool[Tensor, "*any l l"],
    *,
    keep: Bool[Tensor, "b l"] | None = None,
    slopes: Float[Tensor, " h"] | None = None,
) -> Float[Tensor, "b h l v"]:
    """Return softmax attention over the pairs that `sees` names; 0 where a query sees nothing.

    Args:
        q: queries.
        k: keys.
        v: values.
        sees: who (row) sees whom (column); one matrix for all heads, or one for each.
        keep: what is no padding.
        slopes: what a token of distance takes off a head's scores.
    """
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if slopes is not None:
        i = torch.arange(q.shape[2])
        scores = scores - slopes.double()[:, None, None] * (i[:, None] - i).abs()
    if keep is not None:
        sees = sees & keep[:, None, None, :]
    scores = scores.masked_fill(~sees, -1e300)
    weights = (scores - scores.amax(-1, keepdim=True)).exp() * sees
    return weights @ v / weights.sum(-1, keepdim=True).clamp(min=1e-300)


def blocks_in_sight(
    length: int, block: int, look_back: int, look_forward: int, *, causal: bool
) -> Bool[Tensor, "l l"]:
    """Return who sees whom where blocks see so many blocks before and behind them."""
    i = torch.arange(length)
    ahead = (i // block) - (i // block)[:, None]
    sees = (ahead >= -look_back) & (ahead <= look_forward)
    return sees & (i <= i[:, None]) if causal else sees


def comb_attention(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    *,
    block: int,
    longest: int,
    keep: Bool[Tensor, "b l"] | None = None,
) -> Float[Tensor, "b h l v"]:
    """Return what the local attention of the Long Range Arena's code computes.

    Zeros fill the longest sequence up to a whole number of blocks, and at least by one; a reshape
    to (block, groups) then makes token i a member of group i mod groups, which attends to itself.

    Args:
        q: queries.
        k: keys.
        v: values.
        block: tokens of a group.
        longest: tokens of the model's longest sequence.
        keep: what is no padding; zeros that were filled in count. It lies over contiguous blocks,
            so that other tokens are hidden; a query of them gives the mean of its group.
    """
    extra = block - longest % block
    groups, (b, h, length) = (longest + extra) // block, q.shape[:3]
    real = torch.ones(b, length, dtype=torch.bool) if keep is None else keep
    real = torch.nn.functional.pad(real, (0, longest - length))
    real = torch.nn.functional.pad(real, (0, extra), value=True)
    q, k, v = (torch.nn.functional.pad(x, (0, 0, 0, longest + extra - length)) for x in (q, k, v))
    q, k, v = (x.reshape(b, h, block, groups, -1).transpose(2, 3) for x in (q, k, v))
    real = real.reshape(b, 1, groups, block)
    visible = real[..., None] & real[..., None, :]
    o = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~visible, -1e300).softmax(-1) @ v
    return o.transpose(2, 3).reshape(b, h, longest + extra, -1)[:, :, :length]


def near_pairs(length: int, pattern: str, stride: int, *, causal: bool) -> Bool[Tensor, "l l"]:
    """Return A^(1) of the Sparse Transformer, `pattern` being strided or fixed.

    strided: the `stride` tokens before (and behind) the query; fixed: its block of `stride` tokens.
    """
    i, j = torch.arange(length)[:, None], torch.arange(length)
    inside = (i - j).abs() <= stride
    if pattern == "fixed":
        inside = i // stride == j // stride
    return inside & (j <= i) if causal else inside


def far_pairs(
    length: int, pattern: str, stride: int, summary: int, *, causal: bool, part: int = 0
) -> Bool[Tensor, "l l"]:
    """Return A^(2) of the Sparse Transformer, `pattern` being strided or fixed.

    strided: every `stride`-th token, counted from the query; fixed: the last `summary` columns of
    each block, and column 0, since the paper's remainders run up to l, which is 0. `part` takes the
    so manieth `summary` columns from the end instead.
    """
    i, j = torch.arange(length)[:, None], torch.arange(length)
    inside = (i - j) % stride == 0
    if pattern == "fixed":
        end = stride - part * summary
        column = (j % stride == 0) | ((j % stride >= end - summary) & (j % stride < end))
        inside = column.expand(length, length)
    return inside & (j <= i) if causal else inside


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


def best_blocks(scores: Sequence[float], top: int, forced: Sequence[int]) -> list[int]:
    """Return the forced blocks, then those of the highest scores, the earlier among equals.

    Args:
        scores: of each block; -inf for one that may not be seen.
        top: how many blocks, the forced ones included.
        forced: blocks that are chosen in any case, if they may be seen.
    """
    seen = [m for m, score in enumerate(scores) if score > -math.inf]
    return sorted(seen, key=lambda m: (m not in forced, -scores[m], m))[:top]


def moba_pairs(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    block: int,
    top: int,
    *,
    causal: bool,
) -> Bool[Tensor, "b h l l"]:
    """Return who sees whom in Mixture of Block Attention, Lu et al. 2025, arXiv:2502.13189.

    Args:
        q: queries.
        k: keys.
        block: tokens of a block; the last one may be in part filled.
        top: blocks that a query sees, its own included.
        causal: see no later token, and choose no later block.
    """
    batch, heads, length = q.shape[:3]
    spans = [range(m, min(m + block, length)) for m in range(0, length, block)]
    sees = torch.zeros(batch, heads, length, length, dtype=torch.bool)
    for b in range(batch):
        for h in range(heads):
            means = [k[b, h, list(span)].mean(0) for span in spans]
            for i in range(length):
                home = i // block
                scores = [
                    (q[b, h, i] @ mean).item() if m <= home or not causal else -math.inf
                    for m, mean in enumerate(means)
                ]
                for m in best_blocks(scores, top, [home]):
                    for j in spans[m]:
                        sees[b, h, i, j] = j <= i or not causal
    return sees


def nsa_branches(
    q: Float[Tensor, "h l k"],
    keys: Sequence[Float[Tensor, "g l k"]],
    values: Sequence[Float[Tensor, "g l k"]],
    compressed: tuple[Float[Tensor, "g m k"], Float[Tensor, "g m k"]],
    *,
    block: int,
    width: int,
    stride: int,
    top: int,
    first: int,
    local: int,
    window: int,
    causal: bool,
) -> list[Float[Tensor, "h l k"]]:
    """Return the branches of native sparse attention, Yuan et al. 2025, arXiv:2502.11089.

    Args:
        q: queries of one row.
        keys: of the branch of chosen blocks and of that of the window, for groups of heads.
        values: the same.
        compressed: one key and one value for each window.
        block: tokens of a block; the last one may be in part filled.
        width: tokens of a window; the last ones may be in part filled.
        stride: tokens from one window to the next.
        top: blocks that a query chooses, the forced ones included.
        first: forced blocks at the start.
        local: forced blocks up to the query's.
        window: tokens of the window, the query's included, to each side.
        causal: see no later token; a window is seen once all of it is.
    """
    (heads, length, channels), groups = q.shape, len(keys[0])
    shared, count, windows = heads // groups, -(-length // block), len(compressed[0][0])
    rows: list[list[list[Tensor]]] = [[[] for _ in range(heads)] for _ in range(3)]

    def mean(h: int, i: int, k: Tensor, v: Tensor, seen: list[int]) -> Tensor:
        weights = (k[seen] @ q[h, i] / math.sqrt(channels)).softmax(0)
        return weights @ v[seen]

    for g in range(groups):
        for i in range(length):
            home = i // block
            whole = [m for m in range(windows) if not causal or m * stride + width - 1 <= i]
            joined = [-math.inf] * count
            for h in range(g * shared, (g + 1) * shared):
                scores = compressed[0][g, whole] @ q[h, i] / math.sqrt(channels)
                for m, p in zip(whole, scores.softmax(0).tolist(), strict=True):
                    for start in range(m * stride, m * stride + width, stride):
                        if start // block < count:
                            joined[start // block] = max(joined[start // block], 0) + p
                o = mean(h, i, compressed[0][g], compressed[1][g], whole) if whole else 0 * q[h, i]
                rows[0][h].append(o)
            forced = {m for m in range(count) if m < first or home - local < m <= home}
            forced = {m for m in forced if m <= home or not causal}
            for m in forced:
                joined[m] = max(joined[m], 0)
            chosen = best_blocks(joined, top, [*forced])
            inside = [j for j in range(length) if j // block in chosen and (j <= i or not causal)]
            near = [j for j in range(length) if abs(i - j) < window and (j <= i or not causal)]
            for h in range(g * shared, (g + 1) * shared):
                rows[1][h].append(mean(h, i, keys[0][g], values[0][g], inside))
                rows[2][h].append(mean(h, i, keys[1][g], values[1][g], near))
    return [torch.stack([torch.stack(of_head) for of_head in branch]) for branch in rows]
