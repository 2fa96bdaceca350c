"""Forgetting attention: Lin et al. 2025, arXiv:2503.02130."""

import math
from typing import Any

import torch
from torch import Tensor

from tests.literal.heads import in_sight, merged, normed, projected, softmax_over

GRIDS = [
    {
        "causal": [True, False],
        "positions": ["none", "rotary"],
        "masks": ["", "keep", "document", "keep document"],
        "output_norm": [False, True],
        "output_gate": [False, True],
        "qk_norm": [False, True],
        "bias": [False, True],
    },
    {"causal": [True], "masks": ["prefix", "keep document prefix"], "output_norm": [True, False]},
]


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Scores less what gates between query and key forget; padding forgets nothing."""
    length = x.shape[1]
    g = mixer.forget_map(x).sigmoid().log()
    if case.keep is not None:
        g = g * case.keep[..., None]
    rows = []
    for i in range(length):
        fade = []
        for j in range(length):
            between = g[:, min(i, j) + 1 : max(i, j) + 1]
            if case.document is not None:
                own = case.document[:, min(i, j) + 1 : max(i, j) + 1] == case.document[:, i, None]
                between = between * own[..., None]
            fade.append(between.sum(1))
        rows.append(torch.stack(fade, -1))
    q, k, v = projected(mixer, x, case)
    scores = q @ k.mT / math.sqrt(q.shape[-1]) + torch.stack(rows, 2)
    o = softmax_over(scores, in_sight(case, length)) @ v
    if mixer.norm is not None:
        o = normed(o, mixer.norm.weight, 1e-5)
    return merged(mixer, o, x)
