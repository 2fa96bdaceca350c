"""cosFormer: Qin et al. 2022, arXiv:2202.08791; every weight by itself."""

import math
from typing import Any

import torch
from torch import Tensor

from tests.literal.features import mean_of
from tests.literal.heads import merged, projected

KEPT = {"heads": [2], "causal": [False, True], "length": [1, 2, 63, 101], "small": [False, True],
        "max_length": [128]}  # fmt: skip
GRIDS = [
    {**KEPT, "masks": ["", "keep", "start"]},
    {**KEPT, "causal": [True], "chunk": [1, 8]},
    {**KEPT, "horizon": ["current"]},
]


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """w_ij = relu(q_i) . relu(k_j) cos(pi (i - j) / (2 M)), M the horizon."""
    q, k, v = projected(mixer, x, case)
    i, length = torch.arange(x.shape[1]).to(x), x.shape[1]
    horizon = length if case.horizon == "current" else case.max_length
    weights = q.relu() @ k.relu().mT * torch.cos(math.pi / 2 * (i[:, None] - i) / horizon)
    return merged(mixer, mean_of(weights, v, case), x)
