"""Lambda layers: Bello 2021, arXiv:2102.08602; a map for each token, by a double loop."""

from typing import Any

import torch
from torch import Tensor

GRIDS = [
    {
        "heads": [2],
        "max_length": [48],
        "key_width": [3],
        "causal": [False, True],
        "window": [5, None, 1],
        "intra_depth": [1, 2],
        "norm": ["layer", "none"],
        "masks": ["", "keep"],
    }
]


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Make lambda_n of every token and apply it to the queries of every head."""
    (rows, length, _), depth, heads = x.shape, mixer.depth, mixer.heads
    real = torch.ones(rows, length, dtype=torch.bool) if case.keep is None else case.keep
    x = x * real[..., None]
    q = mixer.q_norm(mixer.q_proj(x)).view(rows, length, heads, -1)
    k = mixer.k_proj(x).view(rows, length, depth, -1)
    v = mixer.v_norm(mixer.v_proj(x)).view(rows, length, depth, -1)
    last = mixer.offsets.shape[1] - 1
    middle = last if case.causal else last // 2
    y = []
    for row in range(rows):
        for n in range(length):
            seen = [m for m in range(length) if real[row, m] and (m <= n or not case.causal)]
            total = sum(k[row, m].exp() for m in seen)
            map_ = torch.zeros(q.shape[-1], v.shape[-1], dtype=x.dtype)
            for m in seen:
                for u in range(depth):
                    content = k[row, m, u].exp() / total[u]
                    map_ = map_ + content[:, None] * v[row, m, u]
                    if 0 <= (at := m - n + middle) <= last:
                        map_ = map_ + mixer.offsets[u, at][:, None] * v[row, m, u]
            y.append(torch.cat([map_.T @ q[row, n, head] for head in range(heads)]))
    return torch.stack(y).view(rows, length, -1)
