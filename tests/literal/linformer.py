"""Linformer: Wang et al. 2020, arXiv:2006.04768, section 4; slots head by head."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from tests.literal.heads import merged, projected

USUAL = {"max_length": [40], "projected_length": [[6], [24]], "length": [1, 23, 40],
         "bias": [True, False]}  # fmt: skip
SHARING = ["none", "headwise", "kv", "layerwise", "kv_by_head", "layerwise_by_head"]
GRIDS = [
    {**USUAL, "projection": ["learned", "frozen_jl"], "sharing": SHARING,
     "positions": ["none", "rotary"]},
    {**USUAL, "projection": ["conv"], "sharing": SHARING, "positions": ["none", "rotary"]},
    {**USUAL, "projection": ["mean_pool", "max_pool"], "positions": ["none", "rotary"]},
    {**USUAL, "projection": ["learned", "frozen_jl"], "row_normalise": [True]},
    {**USUAL, "variant": ["lra"], "projected_length": [None], "masks": ["", "keep"]},
    {"max_length": [40], "projected_length": [[6]], "sharing": ["none", "headwise"],
     "length": [9], "masks": ["source"]},
]  # fmt: skip


def linear_slots(
    x: Float[Tensor, "b h l c"], E: Float[Tensor, "m r n"]
) -> Float[Tensor, "b h r c"]:
    """Return E x head by head: slot r is sum_t E_rt x_t over the l first columns of E.

    Wang et al. 2020, section 4. `E` has one map for each head (m = h), or one for all (m = 1).
    """
    slots = []
    for head in range(x.shape[1]):
        one = E[head if E.shape[0] == x.shape[1] else 0]
        slots.append(torch.einsum("kn,bnc->bkc", one[:, : x.shape[2]], x[:, head]))
    return torch.stack(slots, dim=1)


def pooled_slots(
    x: Float[Tensor, "b h l c"], window: int, *, largest: bool = False
) -> Float[Tensor, "b h r c"]:
    """Return the mean, or the largest entry of every channel, of each window of tokens.

    The last window may be shorter. Wang et al. 2020, section 4, "general projections".
    """
    parts = [x[:, :, i : i + window] for i in range(0, x.shape[2], window)]
    return torch.stack([p.amax(2) if largest else p.mean(2) for p in parts], dim=2)


def convolved_slots(
    x: Float[Tensor, "b h l c"], kernels: Float[Tensor, "m p c"], window: int
) -> Float[Tensor, "b h r c"]:
    """Return a convolution over the channels of each head, kernel and stride `window`.

    Args:
        x: keys or values; zeros fill the last window.
        kernels: for each head, or one for all, the taps of a window one after another, each a
            matrix from channels to channels: p = window * c.
        window: tokens of a slot.
    """
    slots = []
    for head in range(x.shape[1]):
        one = kernels[head if kernels.shape[0] == x.shape[1] else 0]
        taps = one.reshape(window, x.shape[3], x.shape[3]).permute(2, 1, 0)  # out, in, tap
        filled = F.pad(x[:, head].mT, (0, -x.shape[2] % window))
        slots.append(F.conv1d(filled, taps, stride=window).mT)
    return torch.stack(slots, dim=1)


def attention_to_slots(
    q: Float[Tensor, "b h l k"], keys: Float[Tensor, "b h r k"], values: Float[Tensor, "b h r v"]
) -> Float[Tensor, "b h l v"]:
    """Return softmax(q K'^T / sqrt(d)) V' over the slots K', V'. Wang et al. 2020, section 4."""
    return (q @ keys.mT / math.sqrt(q.shape[-1])).softmax(-1) @ values


def slots(mixer: Any, which: str, x: Float[Tensor, "b h l c"]) -> Float[Tensor, "b h r c"]:
    """Return the slots of keys or of values, by the maps that these share or not."""
    maps = mixer.core.length_map
    window = -(-mixer.traits.max_length // maps.slots)
    if maps.projection.endswith("pool"):
        return pooled_slots(x, window, largest=maps.projection == "max_pool")
    shared = which == "keys" or maps.values is None
    weight = maps.keys if shared else maps.values
    if maps.projection == "conv":
        return convolved_slots(x, weight, window)
    return linear_slots(x, weight)


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Attend to the slots; padding of a source, which ends it, is cut off."""
    q, k, v = projected(mixer, x, case)
    if case.row_normalise:
        maps = mixer.core.length_map
        weights = maps.keys, maps.keys if maps.values is None else maps.values
        k, v = (
            linear_slots(y, F.normalize(weight.double()[..., : y.shape[2]], dim=-1))
            for y, weight in zip((k, v), weights, strict=True)
        )
        return merged(mixer, attention_to_slots(q, k, v), x)
    if case.source is not None:
        k, v = (part * case.keep[:, None, :, None] for part in (k, v))
    o = attention_to_slots(q, slots(mixer, "keys", k), slots(mixer, "values", v))
    return merged(mixer, o, x)
