"""Softmax attention as loops over single numbers: what tests compare `lra.models.ops.exact` with.

Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2. Imports none of ours.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor


def softmax_attention(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    sees: Callable[[int, int, int], bool],
) -> Float[Tensor, "b h l v"]:
    """Return o_i = sum_j exp(s_ij) v_j / sum_j exp(s_ij), s_ij = q_i . k_j / sqrt(d).

    Args:
        q: queries.
        k: keys.
        v: values.
        sees: whether, in row b of the batch, query i sees key j; a query that sees none gets 0.
    """
    batch, count, length, width = q.shape
    rows = []
    for b in range(batch):
        for h in range(count):
            for i in range(length):
                seen = [j for j in range(length) if sees(b, i, j)]
                total = torch.zeros(v.shape[-1], dtype=v.dtype)
                norm = torch.zeros((), dtype=v.dtype)
                scores = [(q[b, h, i] * k[b, h, j]).sum() / math.sqrt(width) for j in seen]
                top = max((s.item() for s in scores), default=0.0)
                for j, score in zip(seen, scores, strict=True):
                    weight = (score - top).exp()
                    total, norm = total + weight * v[b, h, j], norm + weight
                rows.append(total / norm if seen else total)
    return torch.stack(rows).view(batch, count, length, -1)
