"""Mega: Ma et al. 2022, arXiv:2209.10655, one query after the other."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.literal.state_space import exponential, moving_average

USUAL = {"width": [6], "heads": [2], "max_length": [17], "ema_states": [3], "value_width": [5],
         "key_width": [4], "attention": ["softmax", "laplace"],
         "relative": ["simple", "rotary", "none"], "chunk_length": [None, 4],
         "length": [1, 3, 4, 5, 17], "masks": ["", "keep"], "query_block": [None, 3]}  # fmt: skip
GRIDS = [
    {**USUAL, "causal": [True]},
    {**USUAL, "truncation": [None, 1, 3, 40]},
]


def average(mixer: Any, x: Tensor) -> Tensor:
    """Compute the average from its parameters: a loop, or a double sum over both sides."""
    parts, length = mixer.average, x.shape[1]
    p = parts.delta.sigmoid()
    q, entry = 1 - p * parts.alpha.sigmoid(), p * parts.beta
    readout = parts.gamma / math.sqrt(parts.gamma.shape[-1])
    y = parts.omega * x
    if len(q) == 1:
        return y + moving_average(x.mT, q[0], entry[0], readout[0]).mT
    lags = parts.truncation or length
    kernels = [exponential(*each, length) for each in zip(readout * entry, q, strict=True)]
    for t in range(length):
        for j in range(length):
            for kernel, lag in zip(kernels, (t - j, j - t), strict=True):
                if 0 <= lag < lags:
                    seen = torch.zeros_like(y)
                    seen[:, t] = kernel[:, lag] * x[:, j]
                    y = y + seen
    return y


def distance_score(mixer: Any, i: int, j: int, width: int) -> Tensor | float:
    """Return what is added to the score of query i and key j."""
    scores = mixer.relative
    if scores is None:
        return 0.0
    if hasattr(scores, "least"):
        return scores.weight[i - j - scores.least]
    turned = []
    for vector, place in ((scores.query, i), (scores.key, j)):
        left, right = vector.chunk(2)
        angle = place * 10_000.0 ** (-torch.arange(0, width, 2).double() / width)
        cos, sin = angle.cos(), angle.sin()
        turned.append(torch.cat((left * cos - right * sin, right * cos + left * sin)))
    return turned[0] @ turned[1]


def equations(
    mixer: Any, x: Tensor, keep: Tensor | None = None, residual: Tensor | None = None
) -> Tensor:
    """Compute a layer from its parameters, one query after the other."""
    keep = torch.ones(x.shape[:2], dtype=torch.bool) if keep is None else keep
    width, key_width, value_width, _ = mixer.widths
    x = x * keep[..., None]
    mx = F.silu(average(mixer, x))
    u, z, r, c = mixer.mx_proj(mx).split([width, key_width, value_width, width], dim=-1)
    q, k = (F.silu(z) * mixer.scale[side] + mixer.shift[side] for side in (0, 1))
    v, rows = F.silu(mixer.v_proj(x)), []
    chunk = mixer.chunk_length or x.shape[1]
    for row in range(len(x)):
        outputs = []
        for i in range(x.shape[1]):
            first = i // chunk * chunk
            last = i if mixer.traits.causal else min(first + chunk, x.shape[1]) - 1
            seen = [j for j in range(first, last + 1) if keep[row, j]]
            o = torch.zeros(value_width, dtype=x.dtype)
            scores = [q[row, i] @ k[row, j] for j in seen]
            scale = math.sqrt(key_width) if mixer.attention == "softmax" else len(seen)
            scores = [
                score / scale + distance_score(mixer, i, j, key_width)
                for score, j in zip(scores, seen, strict=True)
            ]
            if mixer.attention == "softmax":
                total = sum(score.exp() for score in scores)
                weights = [score.exp() / total for score in scores]
            else:
                mean, variance = torch.tensor([0.5**0.5, 0.25 / math.pi], dtype=x.dtype)
                normal = torch.distributions.Normal(mean, variance.sqrt())
                weights = [normal.cdf(score) for score in scores]
            for weight, j in zip(weights, seen, strict=True):
                o = o + weight * v[row, j]
            outputs.append(o)
        rows.append(torch.stack(outputs))
    g = F.silu(c + mixer.h_proj(F.silu(r) * torch.stack(rows)))
    return u.sigmoid() * (g - (x if residual is None else residual))


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Return a layer by itself."""
    return equations(mixer, x, case.keep)
