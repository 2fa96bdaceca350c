"""Mamba-3: Lahoti et al. 2026, arXiv:2603.15569, token by token, with complex channels."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.literal.heads import normed, of_parts

USUAL = {"heads": [4], "chunk": [8], "states": [8, 6], "groups": [1, 2], "rank": [1, 3],
         "decay": ["tail", "softplus"], "rotating_share": [0.5, 1.0, 0.0],
         "output_norm": [False, True], "bias": [False, True], "expansion": [2, 1]}  # fmt: skip
GRIDS = [
    {**USUAL, "causal": [True, False], "length": [1, 8, 21], "small": [False, True]},
    {**USUAL, "causal": [True, False], "length": [13], "masks": ["keep", "document",
                                                                 "keep document"]},
    {"heads": [2], "chunk": [64], "states": [4], "causal": [True], "length": [150],
     "rank": [1, 2], "rotating_share": [0.5, 0.0]},
]  # fmt: skip


def rotated(x: Tensor, angle: Tensor) -> Tensor:
    """Turn channels c and c + p of x (... k), for p angles (... p)."""
    pairs = angle.shape[-1]
    whole = torch.complex(x[..., :pairs], x[..., pairs : 2 * pairs])
    whole = whole * torch.complex(angle.cos(), angle.sin())
    return torch.cat((whole.real, whole.imag, x[..., 2 * pairs :]), -1)


def scan(mixer: Any, x: Tensor, case: Any, skip: Tensor) -> Tensor:
    """Return what every token reads of the states, b l r h p."""
    heads, rank = case.heads, case.rank
    v = mixer.input_proj(x).unflatten(-1, (1, heads, -1))
    if rank > 1:
        v = v * mixer.outputs.input_weight.transpose(0, 1)
    of_group = torch.arange(heads) // (heads // case.groups)
    keys, queries = (
        normed(each.unflatten(-1, (rank, case.groups, -1)), part.norm.weight, 1e-5)[
            :, :, :, of_group
        ]
        + part.bias.transpose(0, 1)
        for each, part in ((mixer.write_proj(x), mixer.writes), (mixer.read_proj(x), mixer.reads))
    )
    mapped = mixer.step_map(x)
    step = F.softplus(mapped[..., :heads] + mixer.step_bias)
    raw = mapped[..., heads : 2 * heads]
    rate = torch.where(raw >= 0, 1 + raw, 1 / (1 - raw.clamp(max=0)))
    rate = rate if case.decay == "tail" else (1 + raw.exp()).log()
    decay = (-rate.clamp(min=1e-4) * step).exp()
    share = 1 / (1 + (-mapped[..., 2 * heads : 3 * heads]).exp())
    turn = math.pi * mapped[:, :, None, 3 * heads :].tanh() * step[..., None]  # b l h p
    state = torch.zeros(len(x), heads, case.states, v.shape[-1], dtype=x.dtype)
    before, angle, outputs = torch.zeros_like(state), torch.zeros_like(turn[:, 0]), []
    for t in range(x.shape[1]):
        angle = angle + turn[:, t]
        k, q = (rotated(each[:, t], angle[:, None]) for each in (keys, queries))
        written = torch.einsum("brhn,brhp->bhnp", k, v[:, t])
        a, d, s = (each[:, t, :, None, None] for each in (decay, step, share))
        state = a * state + (1 - s) * d * a * before + s * d * written
        read = torch.einsum("bhnp,brhn->brhp", state, q)
        outputs.append(read + skip[:, None] * v[:, t])
        before = written
    return torch.stack(outputs, 1)


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Read from the start, and where the case is not causal from the end, too."""

    def alone(x: Tensor) -> Tensor:
        o = scan(mixer, x, case, mixer.skip)
        if not case.causal:
            o = o + scan(mixer, x.flip(1), case, 0 * mixer.skip).flip(1)
        if case.output_norm:
            o = normed(o, mixer.outputs.norm_weight, 1e-5)
        z = mixer.gate_proj(x).unflatten(-1, (1, *o.shape[3:]))
        if case.rank > 1:
            z = z * mixer.outputs.gate_weight.transpose(0, 1)
            o = o * mixer.outputs.output_weight.transpose(0, 1)
        return mixer.out_proj((o * F.silu(z)).sum(2).flatten(2))

    return of_parts(alone, x, case)
