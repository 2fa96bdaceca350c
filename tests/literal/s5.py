"""S5: Smith et al. 2022, arXiv:2208.04933, one token after the other, and from the end."""

import math
from typing import Any

import torch
from torch import Tensor

GRIDS = [
    {"width": [6], "heads": [2], "causal": [False, True], "states": [8, 16], "blocks": [1, 2, 4],
     "discretisation": ["zoh", "bilinear"],
     "mixing": ["half_glu1", "half_glu2", "full_glu", "none"],
     "output": ["lecun", "truncated", "complex"], "clip_eigenvalues": [False, True],
     "length": [1, 3, 4, 5, 17]},
]  # fmt: skip


def prepare(mixer: Any) -> None:
    """Let some eigenvalues grow, or nearly: those are what is clipped."""
    mixer.dynamics.real.data[:2] = torch.tensor([0.3, -1e-5])


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Compute a layer from its parameters, one token after the other, and from the end."""
    parts = mixer.dynamics
    real = parts.real.clamp(max=-1e-4) if parts.clip else parts.real
    rate, step = torch.complex(real, parts.frequency), parts.log_step.exp()
    if parts.rule == "zoh":
        factor = (step * rate).exp()
        entry = ((factor - 1) / rate)[:, None] * torch.complex(*parts.entry)
    else:
        factor = (1 + step / 2 * rate) / (1 - step / 2 * rate)
        entry = (step / (1 - step / 2 * rate))[:, None] * torch.complex(*parts.entry)
    y = mixer.skip * x
    for side, c in enumerate(mixer.readout):
        state, read = torch.zeros(len(x), len(factor), dtype=torch.complex128), []
        for u in (x.flip(1) if side else x).unbind(1):
            state = factor * state + u.to(state.dtype) @ entry.T
            read.append(2 * (state @ torch.complex(*c).T).real)
        read = torch.stack(read, dim=1)
        y = y + (read.flip(1) if side else read)
    g = y / 2 * (1 + torch.tanh((2 / math.pi) ** 0.5 * (y + 0.044715 * y**3)))
    if mixer.mixing == "none":
        return g
    gates = mixer.out_proj(g)
    if mixer.mixing == "full_glu":
        return gates[..., : x.shape[-1]] * gates[..., x.shape[-1] :].sigmoid()
    return (g if mixer.mixing == "half_glu1" else y) * gates.sigmoid()
