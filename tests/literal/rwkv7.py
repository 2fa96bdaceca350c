"""RWKV-7: Peng et al. 2025, arXiv:2503.14456, each state computed from the one before."""

import math
from typing import Any

import torch
from torch import Tensor

GRIDS = [
    {"causal": [True], "depth": [3], "chunk": [8], "ranks": [[2, 3, 4, 5]],
     "length": [1, 7, 8, 9, 29], "small": [False, True]},
]  # fmt: skip


def layer(mixer: Any, x: Tensor, first: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the layer's outputs and its values, each state being computed from the one before."""

    def low(name, z, act=lambda y: y):
        layer = mixer.get_submodule(name)
        y = act(z @ layer.down.weight.T) @ layer.up.weight.T
        return y if layer.base is None else layer.base + y

    rows, all_values = [], []
    for b in range(len(x)):
        states = torch.zeros(3, 4, 4).double()  # value x key
        outputs, values = [], []
        for t in range(x.shape[1]):
            before = x[b, t - 1] if t else torch.zeros_like(x[b, 0])
            seen = [x[b, t] + mix * (before - x[b, t]) for mix in mixer.mixes]
            r, k = mixer.r_proj(seen[0]), mixer.k_proj(seen[2])
            logits = low("decay", seen[1], torch.tanh)
            decay = (-math.exp(-0.5) * logits.sigmoid()).exp()
            v = mixer.v_proj(seen[3])
            values.append(v)
            if first is not None:
                v = v + (first[b, t] - v) * low("residual", seen[3]).sigmoid()
            a = low("rate", seen[4]).sigmoid()
            g = low("gate", seen[5], torch.sigmoid)
            heads, after = [], []
            for h in range(3):
                cut = slice(h * 4, (h + 1) * 4)
                kappa = (k * mixer.removal_scale)[cut]
                kappa = kappa / kappa.square().sum().sqrt()
                key = (k * (1 + (a - 1) * mixer.addition_scale))[cut]
                moved = torch.diag(decay[cut]) - torch.outer(kappa, a[cut] * kappa)
                state = states[h] @ moved + torch.outer(v[cut], key)
                after.append(state)
                o = state @ r[cut]
                centred = o - o.mean()
                normed = centred / (centred.square().mean() + 4 * 1e-5).sqrt()
                normed = normed * mixer.norm_weight[cut] + mixer.norm_bias[cut]
                heads.append(normed + (r[cut] * key * mixer.skip[cut]).sum() * v[cut])
            states = torch.stack(after)
            outputs.append(torch.cat(heads) * g)
        rows.append(torch.stack(outputs))
        all_values.append(torch.stack(values))
    return mixer.out_proj(torch.stack(rows)), torch.stack(all_values)


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Return the outputs of a first layer."""
    return layer(mixer, x)[0]
