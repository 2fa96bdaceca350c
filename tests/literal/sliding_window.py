"""A window of so many steps on each side: arXiv:2004.05150; dilated, and lowered by distance."""

from typing import Any

import torch
from torch import Tensor

from tests.literal.heads import attended

KEPT = {
    "causal": [False, True],
    "masks": ["", "keep"],
    "positions": ["none", "rotary", "alibi"],
    "small": [False, True],
}
GRIDS = [
    {**KEPT, "window": [[1], [5], [40], [200]], "block": [1, 8, None], "length": [2, 64, 101]},
    {
        "causal": [False, True],
        "masks": ["", "keep"],
        "positions": ["none", "rotary"],
        "window": [[1], [5], [40]],
        "block": [1, 8, None],
        "length": [2, 64],
        "dilation": [[1], [3]],
        "small": [False, True],
        "sink": [True],
    },
    {**KEPT, "window": [[1], [7]], "dilation": [[5], [70]], "block": [8], "length": [101]},
]


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Attend to whole steps inside the window."""
    (window,), (dilation,) = case.window, case.dilation
    place = torch.arange(x.shape[1])
    distance = place[:, None] - place
    near = (distance.abs() <= window * dilation) & (distance % dilation == 0)
    return attended(mixer, x, case, near)
