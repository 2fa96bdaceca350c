"""Shortformer: Press et al. 2021, arXiv:2012.15832, a cache of inputs without positions."""

import math
from typing import Any

import torch
from torch import Tensor

GRIDS = [
    {"causal": [True], "positions": ["position_infused"], "segment": [5, 20], "memory": [5, 7],
     "length": [20], "bias": [True, False]},
]  # fmt: skip


def table(place: int) -> Tensor:
    angles = [place * 10_000.0 ** (-2 * i / 12) for i in range(12 // 2)]
    found = [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
    return torch.tensor(found, dtype=torch.float64)


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Every segment by itself: cached inputs get places 0 to m - 1, its tokens those behind."""
    cache, out = x.new_zeros(len(x), 0, 12), []
    for piece in x.split(case.segment, dim=1):
        y, heads = torch.cat((cache, piece), 1), []
        m = cache.shape[1]
        placed = torch.stack([y[:, j] + table(j) for j in range(y.shape[1])], 1)
        q, k, v = mixer.q_proj(placed[:, m:]), mixer.k_proj(placed), mixer.v_proj(y)
        for q_h, k_h, v_h in zip(*(part.chunk(3, -1) for part in (q, k, v)), strict=True):
            rows = []
            for i in range(piece.shape[1]):
                scores = (k_h[:, : m + i + 1] @ q_h[:, i, :, None])[..., 0] / math.sqrt(4)
                rows.append((scores.softmax(-1)[..., None] * v_h[:, : m + i + 1]).sum(1))
            heads.append(torch.stack(rows, 1))
        out.append(mixer.out_proj(torch.cat(heads, -1)))
        cache = y[:, -case.memory :].detach()
    return torch.cat(out, 1)
