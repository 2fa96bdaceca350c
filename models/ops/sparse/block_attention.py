"""Attention within blocks and to neighbouring blocks; short sequences use PyTorch's kernel.

PyTorch's kernel with a mask, or without one if all keys are visible, takes about half the time of
`lra.models.ops.sparse.union` per score, so it may compute up to twice as many scores. ALiBi and
dropout use the union; PyTorch's dropout would draw other random numbers.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lra.models.device_kind import device_kind
from lra.models.kernels.door import door
from lra.models.ops.exact import sdpa
from lra.models.ops.numerics import full_precision
from lra.models.ops.sparse.key_sets import PASS_ELEMENTS, PASS_ELEMENTS_ELSEWHERE, Blocks
from lra.models.ops.sparse.union import union_attention


@door
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
    """Return attention of each block to itself and its neighbours; see `union_attention`."""
    if slopes is not None or dropout or not is_short(blocks, q.device):
        return union_attention(q, k, v, blocks, keep=keep, slopes=slopes, dropout=dropout)
    visible = _visible(blocks, keep, q.device)
    precise = torch.promote_types(v.dtype, torch.float32)  # of the sums, as in the union
    with full_precision(q):
        o = sdpa(*(x.to(precise) for x in (q, k, v)), causal=blocks.causal, visible=visible)
    return o.to(v.dtype)


def is_short(blocks: Blocks, device: torch.device) -> bool:
    """Return whether a dense mask is faster: all blocks are visible, or there are few scores."""
    largest = PASS_ELEMENTS.get(device_kind(device), PASS_ELEMENTS_ELSEWHERE)
    # PyTorch's kernel needs half the time per score, so it may compute up to twice as many.
    is_small = blocks.length <= 2 * blocks.reach and blocks.length**2 <= largest
    return is_small or _sees_all(blocks)


def _sees_all(blocks: Blocks) -> bool:
    """Return whether each block attends to all other blocks, or to all earlier ones if causal."""
    others = -(-blocks.length // blocks.block) - 1
    return blocks.look_back >= others and (blocks.causal or blocks.look_forward >= others)


def _visible(
    blocks: Blocks, keep: Bool[Tensor, "b l"] | None, device: torch.device
) -> Bool[Tensor, "#b 1 #l l"] | None:
    """Return True where a query may attend to a key; None if `blocks.causal` decides alone."""
    if _sees_all(blocks) and (keep is None or not blocks.causal):
        return None if keep is None else keep[:, None, None]
    position = torch.arange(blocks.length, device=device)
    offset = position // blocks.block - position[:, None] // blocks.block
    visible = (offset >= -blocks.look_back) & (offset <= blocks.look_forward)
    if blocks.causal:
        visible &= position <= position[:, None]
    return visible[None, None] if keep is None else visible & keep[:, None, None]
