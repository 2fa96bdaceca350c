"""Longformer: Beltagy et al. 2020, arXiv:2004.05150, section 3.1; one softmax, one mask a head."""

from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from tests.literal.heads import (
    attention_in_sight,
    in_sight,
    joined,
    lowered,
    projected,
    rotated,
    split,
)

USUAL = {
    "width": [16],
    "heads": [4],
    "block": [4],
    "causal": [False, True],
    "positions": ["none", "rotary", "alibi"],
}
GRIDS = [
    {**USUAL, "window": [[5]], "cls": [False, True], "global_mask": [True], "length": [29, 6, 1],
     "masks": ["", "keep", "is_global", "keep is_global", "start is_global", "start"],
     "small": [False, True]},
    {**USUAL, "window": [[5], [40]], "cls": [True, False], "dilation": [[3]], "length": [40],
     "dilated_heads": [None, 0, 1], "global_mask": [True, False], "masks": ["", "keep"]},
    {**USUAL, "window": [[4]], "cls": [True, False], "variant": ["lra"], "length": [30],
     "masks": ["", "keep"]},
]  # fmt: skip


def global_tokens(mixer: Any, case: Any, length: int) -> Bool[Tensor, "2 l"]:
    """Return which tokens see all and are seen by all."""
    chosen = torch.zeros(2, length, dtype=torch.bool)
    if case.is_global is not None:
        chosen |= case.is_global
    chosen[:, 0] |= mixer.sees_cls
    return chosen


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Attend to a window and to global tokens; rows of the latter have projections of their own."""
    length, place = x.shape[1], torch.arange(x.shape[1])
    distance, sight = place[:, None] - place, in_sight(case, length)
    low, local = lowered(case, mixer.heads, length), projected(mixer, x, case)
    if case.variant == "lra":  # a token less ahead, and no global one
        near = (distance <= 3) & (distance >= -4)
        return mixer.out_proj(joined(attention_in_sight(*local, near & sight, low)))
    dilated = case.dilated_heads
    dilated = 4 if dilated is None else dilated
    (dilation,) = case.dilation
    step = torch.tensor([1] * (4 - dilated) + [dilation] * dilated)[:, None, None]
    near = (distance % step == 0) & (distance.abs() <= case.window[0] * step)
    chosen = global_tokens(mixer, case, length)
    o = attention_in_sight(*local, (near | chosen[:, None, None]) & sight, low)
    if chosen.any():
        names = ("query_global", "key_global", "value_global")
        q, k, v = (split(getattr(mixer, name)(x), 4) for name in names)
        if case.positions == "rotary":
            q, k = rotated(q, case.start), rotated(k, case.start)
        o = torch.where(chosen[:, None, :, None], attention_in_sight(q, k, v, sight, low), o)
    return mixer.out_proj(joined(o))
