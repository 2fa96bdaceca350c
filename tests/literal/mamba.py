"""Mamba: Gu and Dao 2023, arXiv:2312.00752, one state after the other."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.literal.gated import convolved
from tests.literal.heads import normed

GRIDS = [
    {"causal": [True], "states": [16, 3], "step_rank": [None, 5], "expansion": [1, 2],
     "convolution": [4, None], "bias": [False, True], "length": [1, 7, 21],
     "small": [False, True]},
    {"causal": [True], "states": [3], "inner_norms": [True], "length": [1, 21]},
]  # fmt: skip


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """h_t = exp(dt A) h_(t-1) + dt B_t u_t, y_t = C_t h_t + D u_t."""
    u = convolved(mixer, 0, mixer.input_proj(x))
    rank, write, read = mixer.choice_map(u).split((mixer.rank, mixer.states, mixer.states), -1)
    if case.inner_norms:
        rank, write, read = (
            normed(part, norm.weight, 1e-6)
            for part, norm in zip((rank, write, read), mixer.inner, strict=True)
        )
    dt = F.softplus(mixer.step_map(rank) + mixer.step_bias)
    rates, h, outputs = -mixer.log_rate.exp(), 0.0, []
    for t in range(x.shape[1]):
        step = dt[:, t, :, None]
        h = (step * rates).exp() * h + step * u[:, t, :, None] * write[:, t, None]
        outputs.append((h * read[:, t, None]).sum(-1) + mixer.skip * u[:, t])
    return mixer.out_proj(torch.stack(outputs, 1) * F.silu(mixer.gate_proj(x)))
