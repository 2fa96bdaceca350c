"""Native sparse attention: Yuan et al. 2025, arXiv:2502.11089; its branches query by query."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tests.literal.heads import of_parts
from tests.literal.moba import best_blocks

USUAL = {
    "width": [16],
    "heads": [4],
    "causal": [False, True],
    "key_value_heads": [1, 2, 4],
    "own_keys": [True, False],
    "compression": ["mean", "network"],
    "masks": ["", "keep", "document", "keep document"],
    "length": [18, 20],
}
GRIDS = [
    {**USUAL, "block": [4, 3], "top": [4, 3], "window": [6, 1, 9], "first": [0, 1], "local": [1]},
    {**USUAL, "block": [1, 64], "top": [6, 3], "window": [4, 40], "first": [1], "local": [2]},
    {**USUAL, "block": [4], "compressed_block": [4, 2], "stride": [2], "top": [4], "window": [6],
     "small": [True]},
    {**USUAL, "block": [6, 8], "compressed_block": [4, 6], "stride": [2], "local": [1], "top": [2]},
    {**USUAL, "block": [3], "compressed_block": [3], "stride": [1], "window": [5]},
]  # fmt: skip


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


def compressed(mixer: Any, x: Float[Tensor, "g n k"], *, keys: bool) -> Float[Tensor, "g m k"]:
    """Return one key or value every `stride` tokens, by the definitions."""
    network, whole = mixer.compress_keys if keys else mixer.compress_values, []
    for start in range(0, x.shape[1], mixer.stride):
        block = x[:, start : start + mixer.compressed_block]
        if not [*network.parameters()]:
            whole.append(block.mean(1))
            continue
        placed = block + network.positions[:, : block.shape[1]]
        missing = mixer.compressed_block - block.shape[1]
        flat = torch.nn.functional.pad(placed, (0, 0, 0, missing)).flatten(1)
        inner = (flat @ network.inner.weight.mT + network.inner.bias).clamp(min=0)
        whole.append(inner @ network.outer.weight.mT + network.outer.bias)
    return torch.stack(whole, 1)


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Return the gated sum of the branches, of the real tokens of each document alone."""
    heads, width = case.heads, case.width // case.heads

    def alone(rows: Tensor) -> Tensor:
        (x,) = rows
        q = (x @ mixer.q_proj.weight.mT).view(-1, heads, width).transpose(0, 1)
        both = (x @ mixer.key_value_proj.weight.mT).view(len(x), 2, -1, mixer.groups, width)
        (keys, values) = both.permute(1, 2, 3, 0, 4)  # [branches g n k]
        pick = [0, 1, 2] if len(keys) == 3 else [0, 0, 0]
        blocks = compressed(mixer, keys[0], keys=True), compressed(mixer, values[0], keys=False)
        top, first, local = mixer.numbers
        branches = nsa_branches(
            q, [keys[pick[1]], keys[pick[2]]], [values[pick[1]], values[pick[2]]], blocks,
            block=mixer.block, width=mixer.compressed_block, stride=mixer.stride, top=top,
            first=first, local=local, window=mixer.window, causal=case.causal,
        )  # fmt: skip
        gates = (x @ mixer.gates.weight.mT).sigmoid().view(len(x), 3, heads)
        o = sum(gates[:, b].mT[..., None] * each for b, each in enumerate(branches))
        return (o.transpose(0, 1).flatten(1) @ mixer.out_proj.weight.mT)[None]

    return of_parts(alone, x, case)
