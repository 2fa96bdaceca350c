"""S4, S4D and DSS: Gu et al. 2021, 2022, arXiv:2111.00396, 2206.11893; Gupta 2022, 2203.14343."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.literal.state_space import diagonal, low_rank

USUAL = {"width": [6], "heads": [2], "causal": [True, False], "states": [8, 2],
         "independent": [None, 2], "mixing": ["glu", "linear"], "length": [1, 2, 13]}  # fmt: skip
STARTS = {"init": ["legs", "inverse", "linear"]}
GRIDS = [
    {**USUAL, **STARTS, "discretisation": ["zoh", "bilinear"]},
    {**USUAL, **STARTS, "kernel": ["dss_exp"]},
    {**USUAL, "kernel": ["dplr"], "small": [False, True]},
]


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Compute a layer from its parameters, token by token, and from the end for the other side."""
    parts, outputs = mixer.dynamics, []
    width, number = x.shape[-1], len(parts.frequency)
    for channel in range(width):
        one = channel % number
        rate = torch.complex(-parts.log_decay[one].exp(), parts.frequency[one])
        entry = torch.ones_like(rate)
        if parts.entry is not None:
            entry = torch.complex(*parts.entry[one].unbind(-1))
        step = (parts.middle + parts.log_step[channel]).exp()
        if hasattr(parts, "low_rank"):
            column = torch.complex(*parts.low_rank[one].unbind(-1))
            vectors = torch.stack((rate, column, entry))
        elif parts.rule == "zoh":
            factor = (step * rate).exp()
            entry = (factor - 1) / rate * entry
        else:
            factor = (1 + step / 2 * rate) / (1 - step / 2 * rate)
            entry = step * entry / (1 - step / 2 * rate)
        u = x[:, None, :, channel]
        y = mixer.skip[channel] * u
        for side, readout in enumerate(mixer.readout[:, channel]):
            seen = torch.cat((0 * u[..., :1], u.flip(-1)[..., :-1]), dim=-1) if side else u
            read = torch.complex(*readout.T)[None]
            if hasattr(parts, "low_rank"):
                part = low_rank(seen[:, 0], torch.cat((vectors, read)), step)[:, None]
            else:
                part = diagonal(seen, factor[None], entry[None], read)
            y = y + (part.flip(-1) if side else part)
        outputs.append(y[:, 0])
    y = mixer.out_proj(F.gelu(torch.stack(outputs, dim=-1)))
    return y[..., :width] * y[..., width:].sigmoid() if mixer.mixing == "glu" else y
