"""Attention inside blocks: Parmar et al. 2018, arXiv:1802.05751; the Long Range Arena's code."""

import math
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tests.literal.heads import attended, merged, projected

KEPT = {
    "masks": ["", "keep"],
    "positions": ["none", "rotary", "alibi"],
    "length": [37, 1, 30],
    "small": [False, True],
}
GRIDS = [
    {**KEPT, "causal": [False, True], "block": [8, 5, 30], "look_back": [0, 1, 2]},
    {**KEPT, "block": [8, 4], "look_back": [1, 3], "look_forward": [1, 100]},
    {
        "variant": ["lra"],
        "block": [8],
        "max_length": [32, 33, 39],
        "length": [1, 20, 32],
        "masks": ["", "keep"],
    },
]


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


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Attend to the blocks in sight, or as the arena's code."""
    if case.variant == "lra":
        qkv = projected(mixer, x, case)
        o = comb_attention(*qkv, block=case.block, longest=case.max_length, keep=case.keep)
        return merged(mixer, o, x)
    back, ahead = case.look_back, case.look_forward
    sees = blocks_in_sight(x.shape[1], case.block, back, ahead, causal=case.causal)
    return attended(mixer, x, case, sees)
