"""RG-LRU: De et al. 2024, arXiv:2402.19427, token by token."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.literal.gated import both_ends

GRIDS = [
    {"causal": [True, False], "heads": [1, 3], "convolution": [4, None], "bias": [False, True],
     "length": [1, 7, 21]},
]  # fmt: skip


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """h = a h + sqrt(1 - a^2) (i * u), the first token without the root."""

    def gate(u: Tensor, layer: Any, bias: Tensor) -> Tensor:
        blocks = u.unflatten(-1, layer.weight.shape[:2])
        return (torch.einsum("bni,noi->bno", blocks, layer.weight).flatten(1) + bias).sigmoid()

    def read(x: Tensor) -> Tensor:
        u = mixer.input_proj(x)
        if case.convolution is not None:
            own = mixer.convolutions[0]
            padded = F.pad(u.mT, (3, 0))
            u = F.conv1d(padded, own.weight[:, None], own.bias, groups=u.shape[-1]).mT
        h, rows = torch.zeros_like(u[:, 0]), []
        for t in range(x.shape[1]):
            decay = gate(u[:, t], mixer.decay_map, mixer.decay_bias)
            a = (-8 * F.softplus(mixer.decay) * decay).exp()
            drive = gate(u[:, t], mixer.input_map, mixer.input_bias) * u[:, t]
            h = a * h + ((1 - a**2).sqrt() if t else 1.0) * drive
            rows.append(h)
        return torch.stack(rows, 1)

    return mixer.out_proj(both_ends(read, x, case) * F.gelu(mixer.gate_proj(x), approximate="tanh"))
