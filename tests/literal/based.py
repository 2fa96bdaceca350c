"""Based's linear attention: Arora et al. 2024, arXiv:2402.18668; every weight a polynomial."""

from typing import Any

from torch import Tensor

from tests.literal.features import mean_of
from tests.literal.heads import merged, projected

KEPT = {"masks": ["", "keep"], "bias": [False, True], "length": [1, 21]}
GRIDS = [
    {**KEPT, "causal": [True], "chunk": [8, 64], "feature_width": [6, 16], "small": [False, True],
     "positions": ["none", "rotary"]},
    {**KEPT, "feature_width": [6, 16], "positions": ["none", "rotary"], "small": [False, True]},
    {**KEPT, "causal": [False, True], "feature_width": [1]},
]  # fmt: skip


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Return the mean of values by 1 + s + s^2 / 2, s = q_i . k_j / sqrt(d)."""
    q, k, v = projected(mixer, x, case)
    s = q @ k.mT / q.shape[-1] ** 0.5
    return merged(mixer, mean_of(1 + s + s**2 / 2, v, case), x)
