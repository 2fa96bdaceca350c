"""QRNN: Bradbury et al. 2016, arXiv:1611.01576, equations 3 to 6, token by token."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

GRIDS = [
    {"width": [6], "heads": [2], "causal": [False, True], "pooling": ["f", "fo", "ifo"],
     "kernel": [[1], [2], [3]], "length": [1, 13]},
    {"width": [6], "heads": [2], "causal": [True], "pooling": ["f", "fo"], "zoneout": [0.4]},
]  # fmt: skip


def qrnn(
    x: Float[Tensor, "b l d"],
    weight: Float[Tensor, "maps h k d"],
    bias: Float[Tensor, "maps h"],
    *,
    zoned_out: Bool[Tensor, "b l h"] | None = None,
    taken: float = 1.0,
) -> Float[Tensor, "b l h"]:
    """Equations 3 to 6 of arXiv:1611.01576: f-, fo- or ifo-pooling for 2, 3 or 4 maps.

    Args:
        x: Tokens, all real.
        weight: Of z, f, o and i, for each token that they look at, the farthest first.
        bias: Of the same.
        zoned_out: Cells that stay as they were.
        taken: What 1 - f is multiplied by, but under ifo.
    """
    maps, _, kernel, _ = weight.shape
    batch, length, _ = x.shape
    c, outputs = x.new_zeros(batch, weight.shape[1]), []
    for t in range(length):
        gates = [bias[each].expand(batch, -1) for each in range(maps)]
        for distance in range(min(kernel, t + 1)):
            for each in range(maps):
                gates[each] = gates[each] + x[:, t - distance] @ weight[each, :, -1 - distance].mT
        z, f = torch.tanh(gates[0]), torch.sigmoid(gates[1])
        if maps == 4:
            c = f * c + torch.sigmoid(gates[3]) * z
        else:
            f = 1 - taken * (1 - f)
            if zoned_out is not None:
                f = f.where(~zoned_out[:, t], 1)
            c = f * c + (1 - f) * z
        outputs.append(c if maps == 2 else torch.sigmoid(gates[2]) * c)
    return torch.stack(outputs, dim=1)


def equations(cells: Any, x: Tensor, **options: Any) -> Tensor:
    """Compute one direction, from the weights of one map each."""
    weight = cells.gates.weight.view(cells.maps, cells.hidden, cells.kernel, cells.width)
    return qrnn(x, weight, cells.gates.bias.view(cells.maps, cells.hidden), **options)


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Return both directions side by side; in evaluation zoneout takes a share."""
    taken = 1 - case.zoneout
    y = equations(mixer.cells[0], x, taken=taken)
    if case.causal:
        return y
    return torch.cat((y, equations(mixer.cells[1], x.flip(1), taken=taken).flip(1)), dim=-1)
