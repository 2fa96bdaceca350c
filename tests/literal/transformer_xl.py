"""Transformer-XL: Dai et al. 2019, arXiv:1901.02860, a query and a key at a time."""

import math
from typing import Any

import torch
from torch import Tensor

GRIDS = [
    {"causal": [True], "positions": ["transformer_xl"], "same_length": ["never", "always"],
     "clamp": [None, 4], "segment": [5], "memory": [7, 5], "length": [15]},
]  # fmt: skip


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """The paper's equations, segment by segment."""
    core, k = mixer.core, mixer.head_width
    frequency = [10_000.0 ** (-2 * i / 12) for i in range(12 // 2)]
    w_r = core.relative.r_proj.weight.view(3, k, 12)
    u, v = core.relative.biases.content, core.relative.biases.position
    past = x.new_zeros(len(x), 0, 12)
    out = []
    for piece in x.split(case.segment, dim=1):
        context = torch.cat((past, piece), dim=1)
        w_q, w_k, w_v = (
            layer.weight.view(3, k, 12) for layer in (mixer.q_proj, mixer.k_proj, mixer.v_proj)
        )
        first = past.shape[1]
        for i in range(first, context.shape[1]):
            heads = []
            for h in range(3):
                q, scores, values = context[:, i] @ w_q[h].T, [], []
                for j in range(i + 1):
                    if case.same_length == "always" and i - j >= case.memory:
                        continue
                    t = i - j if case.clamp is None else min(i - j, case.clamp)
                    r = torch.tensor(
                        [math.sin(t * w) for w in frequency] + [math.cos(t * w) for w in frequency],
                        dtype=torch.float64,
                    )
                    content = ((q + u[h]) * (context[:, j] @ w_k[h].T)).sum(-1)
                    scores.append((content + (q + v[h]) @ (w_r[h] @ r)) / math.sqrt(k))
                    values.append(context[:, j] @ w_v[h].T)
                weight = torch.stack(scores, -1).softmax(-1)
                heads.append((weight[..., None] * torch.stack(values, 1)).sum(1))
            out.append(torch.cat(heads, -1) @ mixer.out_proj.weight.T)
        past = context[:, -case.memory :].detach()
    return torch.stack(out, 1)
