"""Adaptive spans: Sukhbaatar et al. 2019, arXiv:1905.07799, equations 2 to 5; persistent keys."""

import math
from typing import Any

import torch
from torch import Tensor

GRIDS = [
    {"causal": [True, False], "persistent": [0, 3], "span": [14], "ramp": [4], "length": [22, 1]},
    {"causal": [True, False], "persistent": [0, 3], "span": [20], "ramp": [2, 30], "bias": [True]},
]


def prepare(mixer: Any) -> None:
    """Take spans of 0, of a part, and of all."""
    mixer.core.spans.data.copy_(torch.tensor([0.0, 0.35, 1.0]))


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Every query, head and key by itself; a key weighs as much as the ramp at its distance."""
    q, k, v = (
        layer(x).unflatten(-1, (mixer.heads, -1))
        for layer in (mixer.q_proj, mixer.k_proj, mixer.v_proj)
    )
    core, width, rows = mixer.core, q.shape[-1], []
    for i in range(x.shape[1]):
        heads = []
        for h in range(mixer.heads):
            scores, masks, values = [], [], []
            last = i if case.causal else min(x.shape[1], i + case.span + 1)
            for j in range(max(0, i - case.span), last):
                mask = (case.ramp + core.spans[h] * case.span - (abs(i - j) - 1)) / case.ramp
                if mask <= 0:
                    continue
                p = core.table.weight[case.span - (i - j)]
                scores.append((q[:, i, h] * (k[:, j, h] + p)).sum(-1) / math.sqrt(width))
                masks.append(mask.clamp(max=1).expand(len(x)))
                values.append(v[:, j, h])
            for n in range(case.persistent):
                scores.append((q[:, i, h] * core.keys[h, n]).sum(-1))
                masks.append(torch.ones_like(scores[-1]))
                value = core.values[h, n] * math.sqrt(case.persistent)
                values.append(value.expand(len(x), -1))
            if not scores:
                heads.append(torch.zeros_like(v[:, i, h]))
                continue
            together = torch.stack(scores, -1)
            top = together.amax(-1, keepdim=True).detach()
            weight = torch.stack(masks, -1) * (together - top).exp()
            weight = weight / weight.sum(-1, keepdim=True)
            heads.append((weight[..., None] * torch.stack(values, 1)).sum(1))
        rows.append(mixer.out_proj(torch.cat(heads, -1)))
    return torch.stack(rows, 1)
