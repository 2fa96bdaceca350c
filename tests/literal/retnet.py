"""RetNet: Sun et al. 2023, arXiv:2307.08621, equations 5 and 8; lightning attention's decays.

MiniMax-01 (arXiv:2501.08313) is that with `decay=slopes`, SiLU on q, k and v, and a joint norm.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.literal.heads import joined, normed, rotated, split

USUAL = {
    "causal": [True, False],
    "chunk": [8],
    "length": [1, 8, 21],
    "norm": ["group", "rms", "joint"],
    "gate": ["silu", "sigmoid", "none"],
    "activation": ["identity", "silu"],
    "value_expansion": [1, 2],
    "rotary": [True, False],
    "bias": [False, True],
    "small": [False, True],
}
GRIDS = [
    {**USUAL, "decay": ["retention"]},
    {**USUAL, "decay": ["slopes"], "depth": [4], "layer": [0, 1, 3]},
]
EPSILON = 1e-6


def decays(case: Any) -> Tensor:
    """Return gamma of each head: 1 - 2^(-5 - h), or MiniMax-01's of a layer."""
    if case.decay == "retention":
        return torch.tensor([1 - 2.0 ** (-5 - h) for h in range(3)], dtype=torch.float64)
    slower = 1 - case.layer / (case.depth - 1 + 1e-5) + 1e-5
    rates = [(1 / 2 ** (8 / 3)) ** (h + 1) * slower for h in range(3)]
    return torch.tensor([math.exp(-rate) for rate in rates], dtype=torch.float64)


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """(Q K^T * D) V with D_nm = gamma^|n - m|, normed by head or together, and gated."""
    act = F.silu if case.activation == "silu" else lambda y: y
    q, k, v = (split(act(layer(x)), 3) for layer in (mixer.q_proj, mixer.k_proj, mixer.v_proj))
    if case.rotary:
        q, k = rotated(q), rotated(k)
    place = torch.arange(x.shape[1])
    d = decays(case)[:, None, None] ** (place[:, None] - place).abs()
    d = d.tril() if case.causal else d
    o = (q @ k.mT / math.sqrt(q.shape[-1]) * d) @ v
    if case.norm == "group":
        o = o - o.mean(-1, keepdim=True)
    if case.norm == "joint":
        o = normed(joined(o), mixer.joint_norm.weight, EPSILON)
    else:
        o = joined(normed(o, 1.0, EPSILON))
    if case.gate != "none":
        gate = mixer.gate_proj(x)
        o = o * gate.sigmoid() * (gate if case.gate == "silu" else 1)
    return mixer.out_proj(o)
