"""Gated linear attention: Yang et al. 2023, arXiv:2312.06635, token by token."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.literal.gated import both_ends, convolved, decayed_product, gated
from tests.literal.heads import joined, normed, split

USUAL = {"causal": [True, False], "chunk": [8], "length": [1, 8, 21], "small": [False, True]}
GRIDS = [
    {**USUAL, "convolution": [None, 3], "gate": ["silu", "none", "sigmoid"],
     "value_expansion": [1, 2], "key_expansion": [0.5, 1.0], "gate_divisor": [16.0, 1.0],
     "gate_rank": [16, 2], "bias": [False, True]},
]  # fmt: skip


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """S_t = Diag(alpha_t) S_(t-1) + k_t v_t^T, o_t = S_t^T q_t / sqrt(k)."""

    def read(x: Tensor) -> Tensor:
        layers = mixer.q_proj, mixer.k_proj, mixer.v_proj
        q, k, v = (split(convolved(mixer, i, layer(x)), 3) for i, layer in enumerate(layers))
        g = split(F.logsigmoid(mixer.decay_up(mixer.decay_down(x))) / case.gate_divisor, 3)
        state = torch.zeros(len(x), 3, k.shape[-1], v.shape[-1], dtype=x.dtype)
        return decayed_product(q * q.shape[-1] ** -0.5, k, v, g, state=state)[0]

    o = joined(normed(both_ends(read, x, case), mixer.norm.weight, 1e-5))
    return gated(mixer, o, x)
