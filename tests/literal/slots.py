"""Gated slots: arXiv:2409.07146, and Raven's routes to them, token by token."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.literal.gated import both_ends
from tests.literal.heads import joined, normed, split

USUAL = {"causal": [True, False], "chunk": [8], "length": [1, 8, 21], "bias": [False, True],
         "slots": [1, 5, 6]}  # fmt: skip
GRIDS = [
    {**USUAL, "gate_divisor": [8.0, 0.5]},
    {**USUAL, "slots": [6], "route": [1, 4, 6], "noise": [True, False]},
]


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Fill slots of keys and of values, and let each query attend to all slots."""
    heads, slots = 3, case.slots

    def decays(x: Tensor) -> Tensor:
        logits = split(mixer.slot_map(x), heads)
        if case.route is None:
            return F.logsigmoid(logits) / case.gate_divisor
        scores = logits.sigmoid()
        least = scores.sort(-1, descending=True).values[..., case.route - 1, None]
        shares = scores * (scores >= least)
        shares = shares / (shares.sum(-1, keepdim=True) + 1e-9)
        rate = mixer.log_rate.exp() * (1 + (mixer.decay_map(x) + mixer.step_bias).exp()).log()
        return -rate.transpose(1, 2)[..., None] * shares

    def read(x: Tensor) -> Tensor:
        maps = mixer.q_proj, mixer.k_proj, mixer.v_proj
        q, k, v = (split(F.silu(layer(x)), heads) for layer in maps)
        if case.route is not None:
            q, k = normed(q, mixer.q_norm.weight, 1e-6), normed(k, mixer.k_norm.weight, 1e-6)
        keep, outputs = decays(x).exp(), []
        keys = values = torch.zeros(len(x), heads, slots, q.shape[-1], dtype=x.dtype)
        for t in range(x.shape[1]):
            a = keep[:, :, t, :, None]
            keys = a * keys + (1 - a) * k[:, :, t, None]
            values = a * values + (1 - a) * v[:, :, t, None]
            weights = (keys @ q[:, :, t, :, None]).softmax(2)
            outputs.append((weights * values).sum(2))
        return torch.stack(outputs, 2)

    o = joined(both_ends(read, x, case))
    return mixer.out_proj(normed(F.silu(o), mixer.joint_norm.weight, 1e-5))
