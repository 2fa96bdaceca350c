"""Gated DeltaNet-2, arXiv:2605.22791, token by token, with a matrix for each token."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.literal.gated import both_ends, convolved
from tests.literal.heads import joined, normed, split

GRIDS = [
    {"causal": [True, False], "chunk": [8], "length": [1, 8, 21], "gate_rank": [None, 3],
     "negative_eigenvalues": [False, True], "convolution": [4, None], "bias": [False, True],
     "small": [False, True]},
]  # fmt: skip


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """S_t = (I - k (b * k)^T) Diag(alpha) S_(t-1) + k (w * v)^T."""

    def read(x: Tensor) -> Tensor:
        layers = mixer.q_proj, mixer.k_proj, mixer.v_proj
        q, k, v = (
            split(convolved(mixer, i, layer(x), always=True), 3) for i, layer in enumerate(layers)
        )
        q, k = (each / (each.square().sum(-1, keepdim=True) + 1e-6).sqrt() for each in (q, k))
        steps = F.softplus(mixer.decay_up(mixer.decay_down(x)) + mixer.step_bias)
        alpha = (-mixer.log_rate.exp()[:, None, None] * split(steps, 3)).exp()
        b = split(mixer.erase_map(x), 3).sigmoid() * (2 if case.negative_eigenvalues else 1)
        v = split(mixer.write_map(x), 3).sigmoid() * v
        width, outputs = k.shape[-1], []
        state, one = torch.zeros(len(x), 3, width, v.shape[-1]).to(x), torch.eye(width).to(x)
        for t in range(x.shape[1]):
            key = k[:, :, t, :, None]
            still = one - key * (b * k)[:, :, t, None]
            state = still @ (alpha[:, :, t, :, None] * state) + key * v[:, :, t, None]
            outputs.append((q[:, :, t, None] @ state)[:, :, 0] * width**-0.5)
        return torch.stack(outputs, 2)

    o = normed(both_ends(read, x, case), mixer.norm.weight, 1e-5)
    return mixer.out_proj(joined(o) * mixer.gate_up(mixer.gate_down(x)).sigmoid())
