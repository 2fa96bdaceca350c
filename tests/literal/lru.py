"""LRU: Orvieto et al. 2023, arXiv:2303.06349, one token after the other, and from the end."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

USUAL = {"width": [6], "heads": [2], "states": [4, 1], "mixing": ["glu", "half_glu"],
         "length": [1, 13]}  # fmt: skip
GRIDS = [
    {**USUAL, "causal": [False, True]},
    {**USUAL, "bidirectional": [False]},
]


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Compute a layer from its parameters, one token after the other, and from the end."""
    parts = mixer.recurrence
    factor = torch.exp(torch.complex(-parts.nu.exp(), parts.theta.exp()))
    entry, gamma = torch.complex(*parts.entry), parts.log_gamma.exp()
    y = mixer.skip * x
    for side, readout in enumerate(mixer.readout):
        state, read = torch.zeros(len(x), len(factor), dtype=torch.complex128), []
        for u in (x.flip(1) if side else x).unbind(1):
            state = factor * state + gamma * (u.to(state.dtype) @ entry.T)
            read.append((state @ torch.complex(*readout).T).real)
        read = torch.stack(read, dim=1)
        y = y + (read.flip(1) if side else read)
    g = F.gelu(y)
    gates = mixer.out_proj(g)
    if mixer.mixing == "half_glu":
        return g * gates.sigmoid()
    return gates[..., : x.shape[-1]] * gates[..., x.shape[-1] :].sigmoid()
