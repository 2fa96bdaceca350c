"""Differential attention: Ye et al. 2024, arXiv:2410.05258."""

import math
from typing import Any

import torch
from torch import Tensor

from tests.literal.heads import in_sight, joined, normed, softmax_over, split

GRIDS = [
    {
        "width": [24],
        "depth": [4],
        "layer": [0, 3],
        "causal": [False, True],
        "masks": ["", "keep", "document"],
        "bias": [False, True],
    }
]


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """(softmax of one half of the channels - lambda softmax of the other) v, normed."""
    start = 0.8 - 0.6 * math.exp(-0.3 * case.layer)
    (a1, b1), (a2, b2) = mixer.core.attend.vectors
    strength = (a1 @ b1).exp() - (a2 @ b2).exp() + start
    q, k, v = (split(layer(x), mixer.heads) for layer in (mixer.q_proj, mixer.k_proj, mixer.v_proj))
    one, other = (
        softmax_over(a @ b.mT / math.sqrt(a.shape[-1]), in_sight(case, x.shape[1]))
        for a, b in zip(q.chunk(2, -1), k.chunk(2, -1), strict=True)
    )
    o = normed((one - strength * other) @ v, mixer.core.attend.norm.weight, 1e-5)
    return mixer.out_proj(joined(torch.mul(o, 1 - start)))
