"""LinOSS: arXiv:2410.03943 and 2505.12171, one token after the other, and from the end."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

USUAL = {"width": [6], "heads": [2], "causal": [False, True], "states": [1, 5],
         "length": [1, 2, 5, 17]}  # fmt: skip
GRIDS = [
    {**USUAL, "discretisation": ["im", "imex"], "stiffness_max": [1.0, 6.0]},
    {**USUAL, "discretisation": ["imex"], "damping": [True], "radius_min": [0.9, 0.2],
     "angle_max": [3.1, 0.1]},
    {"width": [6], "heads": [2], "bidirectional": [False], "length": [9]},
]  # fmt: skip


def prepare(mixer: Any) -> None:
    """Let some oscillators have no stiffness, none of both, or more than damping allows."""
    parts = mixer.oscillators
    if len(parts.step) > 1:
        parts.stiffness.data[:2] = torch.tensor([-0.5, 90.0 if parts.damping is not None else 0.2])
    if len(parts.step) > 1 and parts.damping is not None:
        parts.damping.data[2] = parts.stiffness.data[2] = -0.1


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Solve each step's equations for the next velocity, as the papers state them."""
    parts = mixer.oscillators
    dt, a, damping = parts.step.sigmoid(), parts.stiffness.relu(), torch.zeros(())
    if parts.damping is not None:
        damping = parts.damping.relu()
        root = (1 + dt * damping).sqrt()
        low, high = ((2 + dt * damping + sign * 2 * root) / dt**2 for sign in (-1, 1))
        a = low + (parts.stiffness - low).relu() - (parts.stiffness - high).relu()
    entry, y = torch.complex(*parts.entry), mixer.skip * x
    for side, readout in enumerate(mixer.readout):
        z = place = torch.zeros(len(x), len(dt), dtype=torch.complex128)
        read = []
        for u in (x.flip(1) if side else x).unbind(1):
            force = u.to(z.dtype) @ entry.T
            if mixer.oscillators.rule == "im":  # x_t = x + dt z_t on both sides
                z = (z + dt * (force - a * place)) / (1 + dt * dt * a)
            else:
                z = (z + dt * (force - a * place)) / (1 + dt * damping)
            place = place + dt * z
            read.append((place @ torch.complex(*readout).T).real)
        read = torch.stack(read, dim=1)
        y = y + (read.flip(1) if side else read)
    gates = mixer.out_proj(F.gelu(y, approximate="tanh"))
    return gates[..., : x.shape[-1]] * gates[..., x.shape[-1] :].sigmoid()
