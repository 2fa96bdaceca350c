"""Gated short convolution: LFM2, arXiv:2511.23404, tap by tap."""

from typing import Any

import torch
from torch import Tensor

from tests.literal.gated import both_ends

GRIDS = [
    {"causal": [True, False], "convolution": [2, 3, 7], "bias": [False, True],
     "length": [1, 5, 13]},
]  # fmt: skip


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """y = W_O (c * conv(b * u))."""
    own = mixer.convolutions[0]

    def read(x: Tensor) -> Tensor:
        product = mixer.write_proj(x) * mixer.input_proj(x)
        rows = []
        for t in range(x.shape[1]):
            o = torch.zeros_like(product[:, 0]) if own.bias is None else own.bias
            for tap in range(min(case.convolution, t + 1)):
                o = o + own.weight[:, case.convolution - 1 - tap] * product[:, t - tap]
            rows.append(o)
        return torch.stack(rows, 1)

    return mixer.out_proj(both_ends(read, x, case) * mixer.read_proj(x))
