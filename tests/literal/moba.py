"""Mixture of block attention: Lu et al. 2025, arXiv:2502.13189; which blocks each query sees."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tests.literal.heads import attention_in_sight, merged, of_parts, projected

GRIDS = [
    {
        "causal": [False, True],
        "block": [4, 3, 1],
        "top": [1, 2, 3, 9],
        "length": [19, 24],
        "masks": ["", "keep", "document", "keep document"],
        "small": [False, True],
    },
    {"causal": [False, True], "block": [4], "top": [2], "positions": ["rotary"]},
]


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


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Choose blocks among the real tokens of a document, which stand as if alone."""

    def alone(tokens: Tensor) -> Tensor:
        q, k, v = projected(mixer, tokens, case)
        with torch.no_grad():
            sees = moba_pairs(q, k, case.block, case.top, causal=case.causal)
        return merged(mixer, attention_in_sight(q, k, v, sees), tokens)

    return of_parts(alone, x, case)
