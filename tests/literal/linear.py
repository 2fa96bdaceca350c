"""Linear attention: Katharopoulos et al. 2020, arXiv:2006.16236, equation 4; Shen et al. 2018."""

from typing import Any

import torch
from torch import Tensor

from tests.literal.features import FEATURE_MAPS, efficient_attention, mean_of, sums_of
from tests.literal.heads import merged, projected

KEPT = {"masks": ["", "keep"], "length": [1, 2, 63, 101], "small": [False, True]}
GRIDS = [
    {**KEPT, "feature_map": [*FEATURE_MAPS], "positions": ["none", "rotary"]},
    {**KEPT, "feature_map": [*FEATURE_MAPS], "causal": [True], "chunk": [1, 8, 64]},
    {**KEPT, "feature_map": ["softmax_dims"], "length": [9, 63]},
    {**KEPT, "denominator": ["root_length"], "length": [25, 9]},
    {"variant": ["lra"], "length": [24, 63], "small": [False, True]},
    {"masks": ["source"], "feature_map": ["elu1", "softmax_dims"]},
]  # fmt: skip


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Return sums of values by weights phi(q_i) . phi(k_j), over the sums of weights."""
    q, k, v = projected(mixer, x, case)
    name = case.feature_map
    if name == "softmax_dims":
        return merged(mixer, efficient_attention(q, k, v, keep=case.keep), x)
    phi = FEATURE_MAPS[name]
    weights = phi(q) @ phi(k).mT
    if case.denominator == "root_length":
        o = sums_of(weights, v, case)
        return merged(mixer, torch.div(o, x.shape[1] ** 0.5), x)
    if case.variant == "lra":
        return merged(mixer, weights @ v / (weights.sum(-1, keepdim=True) + 1e-6), x)
    return merged(mixer, mean_of(weights, v, case), x)
