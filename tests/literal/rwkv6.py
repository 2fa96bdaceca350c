"""RWKV-6: Peng et al. 2024, arXiv:2404.05892, each state computed from the one before."""

from typing import Any

import torch
from torch import Tensor

GRIDS = [
    {"causal": [True], "layer": [1], "depth": [3], "chunk": [8], "mix_rank": [2],
     "decay_rank": [3], "length": [1, 8, 9, 21], "bias": [False, True]},
]  # fmt: skip


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Return the layer's outputs, each state being computed from the one before."""
    rows = []
    for row in x:
        states, outputs = [torch.zeros(4, 4).double()] * 3, []  # value x key
        for t, token in enumerate(row):
            change = (row[t - 1] if t else torch.zeros_like(token)) - token
            low = torch.tanh(mixer.mix_down.weight @ (token + change * mixer.first_mix))
            w, k, v, r, g = (
                token + change * (mixer.mixes[n] + part @ mixer.mix_up[n])
                for n, part in enumerate(low.split(len(low) // 5))
            )
            low = torch.tanh(mixer.decay.down.weight @ w)
            decay = torch.exp(-torch.exp(mixer.decay.base + mixer.decay.up.weight @ low))
            r, k, v, gate = mixer.r_proj(r), mixer.k_proj(k), mixer.v_proj(v), mixer.gate_proj(g)
            heads, after = [], []
            for h in range(3):
                cut = slice(h * 4, (h + 1) * 4)
                own = torch.outer(v[cut], k[cut] * mixer.bonus[cut])
                o = (states[h] + own) @ r[cut]
                after.append(states[h] * decay[cut] + torch.outer(v[cut], k[cut]))
                centred = o - o.mean()
                normed = centred / (centred.square().mean() + 64e-5).sqrt()
                heads.append(normed * mixer.norm_weight[cut] + mixer.norm_bias[cut])
            states = after
            outputs.append(torch.cat(heads) * gate * gate.sigmoid())
        rows.append(torch.stack(outputs))
    return mixer.out_proj(torch.stack(rows))
