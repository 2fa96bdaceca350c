"""Heads that share projections: Cordonnier et al. 2020, arXiv:2006.16362, equations 6 and 7."""

from typing import Any

import torch
from torch import Tensor

from tests.literal.heads import in_sight, joined, lowered, rotated, softmax_over, split

KEPT = {"causal": [False, True], "masks": ["", "keep"], "bias": [True, False]}
GRIDS = [
    {**KEPT, "positions": ["none", "rotary", "alibi"], "mixing": ["concatenation", "ones"]},
    {**KEPT, "positions": ["none", "rotary", "alibi"], "mixing": ["normal"], "key_width": [8]},
    {"masks": ["source"], "mixing": ["normal", "ones"]},
]


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Softmax of (W_q x_i m_h) (W_k x_j) + b_h x_j over sqrt(d), head by head."""
    source = x if case.source is None else case.source
    values, heads = split(mixer.v_proj(source), mixer.heads), []
    sees, low = in_sight(case, x.shape[1]), 0.0
    for h, mixing in enumerate(mixer.mixing):
        q, k = mixing * (x @ mixer.q_proj.weight.mT), source @ mixer.k_proj.weight.mT
        q, k = q[:, None], k[:, None]
        if case.positions == "rotary":
            q, k = rotated(q), rotated(k)
        scores = q @ k.mT
        if mixer.content is not None:
            scores = scores + (source @ mixer.content.weight[h])[:, None, None]
        if case.positions == "alibi":
            low = lowered(case, mixer.heads, x.shape[1])[h]
        scores = scores / (mixer.key_width / mixer.heads) ** 0.5 - low
        heads.append(softmax_over(scores, sees) @ values[:, h : h + 1])
    return mixer.out_proj(joined(torch.cat(heads, 1)))
