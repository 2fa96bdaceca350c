"""Kimi delta attention: Kimi Team 2025, arXiv:2510.26692, token by token."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.literal.gated import both_ends, convolved, delta_product, preconditioned
from tests.literal.heads import joined, normed, split

GRIDS = [
    {"causal": [True, False], "chunk": [8], "length": [1, 8, 21], "bound": [None, -5.0],
     "negative_eigenvalues": [False, True], "gate_rank": [None, 3], "convolution": [4, None],
     "bias": [False, True], "small": [False, True]},
    {"causal": [True], "chunk": [8], "length": [21], "gate_bias": [False]},
    {"causal": [True, False], "chunk": [8], "length": [1, 8, 21], "bound": [None, -5.0],
     "precondition": [1.0, 1.5, 2.0], "convolution": [4, None], "small": [False, True]},
]  # fmt: skip


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """The delta rule with a decay of each channel of keys."""

    def read(x: Tensor) -> Tensor:
        layers = mixer.q_proj, mixer.k_proj, mixer.v_proj
        q, k, v = (
            split(convolved(mixer, i, layer(x), always=True), 3) for i, layer in enumerate(layers)
        )
        q, k = (each / (each.square().sum(-1, keepdim=True) + 1e-6).sqrt() for each in (q, k))
        steps = split(mixer.decay_up(mixer.decay_down(x)) + mixer.step_bias, 3)
        rate = mixer.log_rate.exp()[:, None, None]
        g = -rate * F.softplus(steps)
        if case.bound is not None:
            g = case.bound * (rate * steps).sigmoid()
        beta = split(mixer.beta_map(x), 3).sigmoid() * (2 if case.negative_eigenvalues else 1)
        state = torch.zeros(len(x), 3, k.shape[-1], v.shape[-1], dtype=x.dtype)
        w = beta * k if case.precondition is None else beta * k * preconditioned(mixer, x, k, case)
        return delta_product(q * q.shape[-1] ** -0.5, k, w, v, g, state=state)[0]

    o = normed(both_ends(read, x, case), mixer.norm.weight, 1e-5)
    return mixer.out_proj(joined(o) * mixer.gate_up(mixer.gate_down(x)).sigmoid())
