"""LSTM: Hochreiter and Schmidhuber 1997; every gate by itself."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

GRIDS = [
    {"width": [8], "heads": [2], "causal": [False, True], "hidden_width": [None, 5],
     "masks": ["", "keep"], "length": [1, 13]},
]  # fmt: skip


def lstm(
    x: Float[Tensor, "b l d"],
    weights: Sequence[Tensor],
    keep: Bool[Tensor, "b l"] | None = None,
    *,
    backwards: bool = False,
) -> Float[Tensor, "b l h"]:
    """Give h of every real token; padding gives 0, and leaves h and c as they were.

    Args:
        x: Tokens.
        weights: W of the four gates i, f, g, o below each other, U likewise, and two biases.
        keep: True for real tokens.
        backwards: From the last token to the first.
    """
    (w_i, w_f, w_g, w_o), (u_i, u_f, u_g, u_o) = (each.chunk(4) for each in weights[:2])
    b_i, b_f, b_g, b_o = (weights[2] + weights[3]).chunk(4)
    batch, length, _ = x.shape
    h = c = x.new_zeros(batch, u_i.shape[1])
    outputs: list[Tensor] = [h] * length
    for t in reversed(range(length)) if backwards else range(length):
        token = x[:, t]
        i = torch.sigmoid(token @ w_i.mT + h @ u_i.mT + b_i)
        f = torch.sigmoid(token @ w_f.mT + h @ u_f.mT + b_f)
        g = torch.tanh(token @ w_g.mT + h @ u_g.mT + b_g)
        o = torch.sigmoid(token @ w_o.mT + h @ u_o.mT + b_o)
        new = f * c + i * g
        real = torch.ones_like(c[:, :1], dtype=torch.bool) if keep is None else keep[:, t, None]
        h, c = (o * torch.tanh(new)).where(real, h), new.where(real, c)
        outputs[t] = h.where(real, 0)
    return torch.stack(outputs, dim=1)


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Return what the cells of both directions give, side by side."""
    made = [
        lstm(x, [*cell.lstm.parameters()], case.keep, backwards=number == 1)
        for number, cell in enumerate(mixer.cells)
    ]
    y = torch.cat(made, dim=-1)
    return y if mixer.out_proj is None else mixer.out_proj(y)
