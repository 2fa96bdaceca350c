"""Recurrent layers as their papers write them: token by token, every gate by itself."""

import torch
from jaxtyping import Inexact
from torch import Tensor


def linear_recurrence(
    a: Inexact[Tensor, "b l d"], b: Inexact[Tensor, "b l d"], start: Inexact[Tensor, "b d"]
) -> Inexact[Tensor, "b l d"]:
    """c_t = a_t c_{t-1} + b_t."""
    c, outputs = start, []
    for t in range(a.shape[1]):
        c = a[:, t] * c + b[:, t]
        outputs.append(c)
    return torch.stack(outputs, dim=1)
