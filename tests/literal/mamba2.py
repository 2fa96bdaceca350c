"""Mamba-2: Dao and Gu 2024, arXiv:2405.21060; Hydra: arXiv:2407.09941; levels: arXiv:2506.04761."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.literal.gated import decayed_product, log_linear_product
from tests.literal.heads import normed

USUAL = {"heads": [4], "causal": [True], "chunk": [8], "states": [5, 1], "expansion": [2, 1],
         "convolution": [4, None], "length": [1, 8, 21], "bias": [False, True],
         "small": [False, True]}  # fmt: skip
GRIDS = [
    {**USUAL, "groups": [1, 2]},
    {**USUAL, "small": [False], "output_norm": [False]},
    {**USUAL, "log_linear": [True]},
    {**USUAL, "causal": [False], "quasi_separable": [True], "convolution": [7, None],
     "length": [1, 11]},
]  # fmt: skip


def streams(mixer: Any, x: Tensor, *, centred: bool = False) -> list[Tensor]:
    """Return x, B and C behind convolutions of all channels."""
    parts = []
    for number, layer in enumerate((mixer.input_proj, mixer.write_proj, mixer.read_proj)):
        y = layer(x)
        if len(mixer.convolutions):
            own = mixer.convolutions[number]
            taps, width = own.weight.shape[1], y.shape[-1]
            sides = (taps // 2, taps // 2) if centred else (taps - 1, 0)
            y = F.conv1d(F.pad(y.mT, sides), own.weight[:, None], own.bias, groups=width).mT
            y = F.silu(y)
        parts.append(y)
    return parts


def hydra(mixer: Any, x: Tensor) -> Tensor:
    """M_ij = (C_(i-1) . B_j) exp(G_(i-1) - G_j) below, delta_i on; from the end above."""
    v, write, read = streams(mixer, x, centred=True)
    dt = F.softplus(mixer.step_map(x).unflatten(-1, (2, 4)) + mixer.step_bias)  # of both ends
    write, read = (each.unflatten(-1, (2, -1)) for each in (write, read))
    length, values, skip = x.shape[1], v.unflatten(-1, (4, -1)), mixer.skip + mixer.skip_map(v)
    g, rows = -mixer.log_rate.exp() * dt, []  # b l 2 h
    for i in range(length):
        y = skip[:, i, :, None] * values[:, i]
        for j in range(length):
            if i != j:
                side, reader = int(j > i), i - 1 if j < i else i + 1
                between = g[:, j + 1 : i, 0] if j < i else g[:, i + 1 : j, 1]
                score = (read[:, reader, side] * write[:, j, side]).sum(-1, keepdim=True)
                score = score * dt[:, j, side] * between.sum(1).exp()
                y = y + score[..., None] * values[:, j]
        rows.append(y.flatten(1))
    o = normed(torch.stack(rows, 1), mixer.norm.weight, 1e-5)
    return mixer.out_proj(o * F.silu(mixer.gate_proj(x)))


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """S_t = exp(dt A) S_(t-1) + dt B_t x_t^T, y_t = C_t S_t + D x_t; groups of heads share B, C."""
    if case.quasi_separable:
        return hydra(mixer, x)
    values, write, read = streams(mixer, x)
    dt = F.softplus(mixer.step_map(x) + mixer.step_bias).mT
    v = values.unflatten(-1, (4, -1)).transpose(1, 2)
    write, read = (each.unflatten(-1, (-1, case.states)).transpose(1, 2) for each in (write, read))
    write, read = (each.repeat_interleave(4 // each.shape[1], 1) for each in (write, read))
    g, inputs = -mixer.log_rate.exp()[:, None] * dt, dt[..., None] * v
    if case.log_linear:
        weights = mixer.level_map(x).unflatten(-1, mixer.level_scale.shape) * mixer.level_scale
        o = log_linear_product(read, write, inputs, g, F.softplus(weights).transpose(1, 2))
    else:
        state = torch.zeros(len(x), 4, case.states, v.shape[-1], dtype=x.dtype)
        o, _ = decayed_product(read, write, inputs, g, state=state)
    o = (o + mixer.skip[:, None, None] * v).transpose(1, 2).flatten(2)
    gated = o * F.silu(mixer.gate_proj(x))
    return mixer.out_proj(normed(gated, mixer.norm.weight, 1e-5) if case.output_norm else gated)
