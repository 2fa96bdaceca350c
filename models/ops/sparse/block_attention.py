"""Attention within blocks and to whole neighbours: for short sequences through PyTorch's kernel.

The kernel with a mask, or with none where all is seen, takes about half the time of
`lra.models.ops.sparse.union` for each score, so it pays up to twice as many. ALiBi is left to the
union, and so is dropout, whose draws would be other ones.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lra.models.device_kind import device_kind
from lra.models.ops.exact import sdpa
from lra.models.ops.numerics import full_precision
from lra.models.ops.sparse.key_sets import PASS_ELEMENTS, PASS_ELEMENTS_ELSEWHERE, Blocks
from lra.models.ops.sparse.union import union_attention


def block_attention(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    blocks: Blocks,
    *,
    keep: Bool[Tensor, "b l"] | None = None,
    slopes: Float[Tensor, " h"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "b h l v"]:
    """Attend to the keys of one set of blocks; arguments as `union_attention`."""
    if slopes is not None or dropout or not _is_short(blocks, q.device):
        return union_attention(q, k, v, blocks, keep=keep, slopes=slopes, dropout=dropout)
    visible = _visible(blocks, keep, q.device)
    precise = torch.promote_types(v.dtype, torch.float32)  # of the sums, as in the union
    with full_precision(q):
        o = sdpa(*(x.to(precise) for x in (q, k, v)), causal=blocks.causal, visible=visible)
    return o.to(v.dtype)


def _is_short(blocks: Blocks, device: torch.device) -> bool:
    """Tell whether a dense mask is fast: all blocks are visible, or scores are few."""
    most = PASS_ELEMENTS.get(device_kind(device), PASS_ELEMENTS_ELSEWHERE)
    is_small = blocks.length <= 2 * blocks.reach and blocks.length**2 <= most
    return is_small or _all_seen(blocks)


def _all_seen(blocks: Blocks) -> bool:
    """Tell whether each block attends to all others, as far as causality allows."""
    others = -(-blocks.length // blocks.block) - 1
    return blocks.look_back >= others and (blocks.causal or blocks.look_forward >= others)


def _visible(
    blocks: Blocks, keep: Bool[Tensor, "b l"] | None, device: torch.device
) -> Bool[Tensor, "#b 1 #l l"] | None:
    """Return which query may attend to which key; None if `causal` alone decides."""
    if _all_seen(blocks) and (keep is None or not blocks.causal):
        return None if keep is None else keep[:, None, None]
    place = torch.arange(blocks.length, device=device)
    offset = place // blocks.block - place[:, None] // blocks.block
    seen = (offset >= -blocks.look_back) & (offset <= blocks.look_forward)
    if blocks.causal:
        seen &= place <= place[:, None]
    return seen[None, None] if keep is None else seen & keep[:, None, None]
