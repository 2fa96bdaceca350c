"""Latent attention: DeepSeek-V2, arXiv:2405.04434, equations 9 to 19."""

from typing import Any

import torch
from torch import Tensor

from tests.literal.heads import (
    attention_in_sight,
    in_sight,
    joined,
    lowered,
    normed,
    rotated,
    split,
)

KEPT = {
    "causal": [False, True],
    "kv_width": [None, 5],
    "query_width": [None, 7],
    "bias": [False, True],
    "own_head_width": [None, 6],
    "masks": ["", "keep", "document"],
    "sink": [False, True],
}
GRIDS = [
    {**KEPT, "positions": ["rotary"], "rotary_width": [None, 4]},
    {**KEPT, "positions": ["none", "alibi"]},
    {**KEPT, "positions": ["none"], "unrotated": [True], "rotary_width": [None, 4]},
    {"causal": [True], "positions": ["rotary"], "rotary_base": [100.0], "masks": ["", "keep"]},
]


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Keys and values of a compressed vector c, and a rotated part of keys that heads share."""
    width = mixer.head_width
    down = mixer.kv_proj(x)
    c = normed(down[..., : mixer.kv_width], mixer.kv_norm.weight, 1e-6)
    shared = down[..., mixer.kv_width :][:, None]
    asked = mixer.q_proj(x)
    if mixer.q_up is not None:
        asked = mixer.q_up(normed(asked, mixer.q_norm.weight, 1e-6))
    q = split(asked, mixer.heads)
    k, v = (split(c @ up.weight.mT, mixer.heads) for up in (mixer.k_up, mixer.v_up))
    if case.positions == "rotary":
        shared = rotated(shared, None, case.rotary_base)
        turned = rotated(q[..., width:], None, case.rotary_base)
        q = torch.cat((q[..., :width], turned), -1)
    k = torch.cat((k, shared.expand(-1, mixer.heads, -1, -1)), -1)
    low = lowered(case, mixer.heads, x.shape[1])
    o = attention_in_sight(q, k, v, in_sight(case, x.shape[1]), low, sinks=mixer.core.sinks)
    return mixer.out_proj(joined(o))
