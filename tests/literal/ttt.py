"""TTT-Linear: Sun et al. 2024, arXiv:2407.04620, each gradient by autograd."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.literal.convolutions import short_convolution

GRIDS = [
    {"causal": [True], "block": [4], "length": [1, 3, 4, 5, 14], "share_query_key": [False, True],
     "gate": [False, True], "rate": [1.0, 2.0], "bias": [False, True]},
]  # fmt: skip


def turned(x: Tensor, place: int) -> Tensor:
    """Rotate a head's pairs of channels."""
    pairs = torch.complex(*x.chunk(2))
    angles = place * 10_000.0 ** (-torch.arange(0, 4, 2).double() / 4)
    pairs = pairs * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((pairs.real, pairs.imag))


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    q, v = mixer.q_proj(x), mixer.value_map(x)
    k = q if mixer.k_proj is None else mixer.k_proj(x)
    if len(mixer.convolutions):
        q, k = (
            short_convolution(y, layer.weight, layer.bias)
            for y, layer in zip((q, k), mixer.convolutions, strict=True)
        )
    rows = []
    for b in range(len(x)):
        heads = []
        for h in range(3):
            here = slice(h * 4, (h + 1) * 4)
            norm = [4], mixer.norm_weight[h, 0], mixer.norm_bias[h, 0], 1e-6
            weight, shift = mixer.weight[h], mixer.bias[h, 0]
            for t in range(x.shape[1]):
                i = t % 4
                if i == 0:
                    total = 0.0, 0.0
                asked, key = turned(q[b, t, here], i), turned(k[b, t, here], i)
                loss = (F.layer_norm(key @ weight + shift, *norm) - (v[b, t, here] - key)).square()
                slopes = torch.autograd.grad(loss.sum() / 2, (weight, shift), create_graph=True)
                logit = mixer.rate_map.weight[h] @ x[b, t] + mixer.rate_map.bias[h]
                rate = mixer.rate * logit.sigmoid() / 4
                total = [a + rate * slope for a, slope in zip(total, slopes, strict=True)]
                tau = (1 / (i + 1) + mixer.place_rate[i]).clamp(min=0)
                after = weight - tau * total[0], shift - tau * total[1]
                heads.append(asked + F.layer_norm(asked @ after[0] + after[1], *norm))
                if i == 4 - 1:
                    weight, shift = after
        rows.append(torch.stack(heads).view(3, -1, 4).transpose(0, 1).flatten(1))
    y = F.layer_norm(torch.stack(rows), [12], mixer.post_norm.weight, mixer.post_norm.bias, 1e-6)
    if mixer.gate_proj is not None:
        y = y * F.gelu(mixer.gate_proj(x), approximate="tanh")
    return mixer.out_proj(y)
