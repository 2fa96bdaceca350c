"""MesaNet: von Oswald et al. 2025, arXiv:2506.05233; systems solved by elimination."""

from typing import Any

import torch
from torch import Tensor

from tests.literal.gated import convolved, gated
from tests.literal.heads import joined, normed, split

GRIDS = [
    {"causal": [True], "chunk": [8], "length": [1, 7, 8, 9, 29],
     "gate": ["none", "silu", "sigmoid"], "ridge_min": [0.25, 0.1],
     "convolution": [4, None], "bias": [False, True],
     "small": [False, True]},
]  # fmt: skip


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """o_t = V_t (K_t + Lambda)^-1 q_t, K and V being decayed sums of beta k k^T and beta v k^T."""
    q, k = (
        split(convolved(mixer, number, layer(x), always=True), 3)
        for number, layer in enumerate((mixer.q_proj, mixer.k_proj))
    )
    q, k = (y / (y.square().sum(-1, keepdim=True) + 1e-6).sqrt() for y in (q, k))
    v = split(mixer.v_proj(x), 3)
    beta, gamma = (layer(x).sigmoid().mT for layer in (mixer.beta_map, mixer.decay_map))
    ridge = torch.diag_embed((1 + mixer.ridge.exp()).log() + mixer.ridge_min)
    of_keys = of_values = torch.zeros(*q.shape[:2], q.shape[3], q.shape[3], dtype=x.dtype)
    outputs = []
    for t in range(x.shape[1]):
        left, enters = gamma[:, :, t, None, None], beta[:, :, t, None, None]
        of_keys = left * of_keys + enters * k[:, :, t, :, None] * k[:, :, t, None]
        of_values = left * of_values + enters * v[:, :, t, :, None] * k[:, :, t, None]
        solved = torch.linalg.solve(of_keys + ridge, q[:, :, t])
        outputs.append((of_values @ solved[..., None])[..., 0])
    o = normed(torch.stack(outputs, 2), mixer.norm.weight, 1e-5)
    return gated(mixer, joined(o), x)
