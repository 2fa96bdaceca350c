"""The kernel of mamba-ssm for `selective_scan`, on rows (b, e, l) where ours are (b, l, e).

`dt` comes after softplus. Its last state has no gradient. So n tokens follow the last one, which
change nothing (dt = 0) and read the state: the j-th has C = e_j.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lra.models.kernels.kernel import PublicKernel

MOST_STATES = 256
"""Most states of a channel."""


def _takes(u: Tensor, rates: Tensor, state: Tensor | None, begins: Tensor | None, **_: Any) -> str:
    if state is not None:
        return "it begins with an empty state"
    if begins is not None:
        return "it does not begin anew at documents"
    if u.dtype == torch.float64:
        return "it has no float64"
    states = rates.shape[1]
    return f"it has {MOST_STATES} states at most: got {states}" if states > MOST_STATES else ""


def _call(
    function: Callable[..., Tensor],
    *,
    u: Tensor,
    dt: Tensor,
    rates: Tensor,
    write: Tensor,
    read: Tensor,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    length, states = u.shape[1], rates.shape[1]
    # float32: steps in bfloat16 would change every decay.
    inputs, steps, writes = (F.pad(x.float().mT, (0, states)) for x in (u, dt, write))
    each = torch.eye(states, device=u.device).expand(len(u), -1, -1)
    reads = torch.cat((read.float().mT, each), 2)
    y = function(inputs, steps, rates.float(), writes, reads)
    return y[..., :length].mT.to(u.dtype), y[..., length:].clone()


KERNELS = (
    PublicKernel(
        "selective_scan", "mamba-ssm", ("2.3",),
        "mamba_ssm.ops.selective_scan_interface:selective_scan_fn", takes=_takes, call=_call,
    ),
)  # fmt: skip
