"""HGRN2: Qin et al. 2024, arXiv:2404.07904, token by token."""

from typing import Any

import torch
from torch import Tensor

from tests.literal.gated import both_ends, decayed_product
from tests.literal.heads import joined, normed, split

GRIDS = [
    {"causal": [True, False], "chunk": [8], "length": [1, 8, 21], "layer": [0, 2], "depth": [4],
     "bias": [False, True], "lower_bounds": [True, False]},
]  # fmt: skip


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Keys are what the gates, which have a lower bound, forget."""
    gamma = 0.0
    if case.layer and case.lower_bounds:
        share = mixer.bounds.table.softmax(0).cumsum(0)
        gamma = share[case.layer] - share[0]

    def read(x: Tensor) -> Tensor:
        alpha, q = gamma + (1 - gamma) * mixer.forget_proj(x).sigmoid(), mixer.q_proj(x)
        parts = q * q.sigmoid(), 1 - alpha, mixer.input_proj(x), alpha.log()
        q, k, v, g = (split(part, 3) for part in parts)
        state = torch.zeros(len(x), 3, k.shape[-1], v.shape[-1], dtype=x.dtype)
        return decayed_product(q * q.shape[-1] ** -0.5, k, v, g, state=state)[0]

    o = joined(both_ends(read, x, case))
    return mixer.out_proj(normed(o, mixer.norm.weight, 1e-5))
