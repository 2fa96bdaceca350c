"""Luna: Ma et al. 2021, arXiv:2106.01540; by head, and causally by a loop over time."""

import math
from typing import Any

import torch
from torch import Tensor

from tests.literal.heads import split

GRIDS = [
    {"slots": [5], "tie_kv": [True, False], "pack_heads": [None, 2], "norm_residual": [False, True],
     "dynamic_projection": [True, False], "length": [1, 5, 21], "masks": ["", "keep"]},
    {"slots": [5], "causal": [True], "tie_kv": [True, False], "activation": ["softplus", "elu1"],
     "chunk": [8, 32], "length": [1, 23], "masks": ["", "keep"]},
]  # fmt: skip


def attention(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    """Softmax attention of (tokens, width), head by head."""
    out = []
    for a, b, c in zip(*(x.chunk(heads, dim=-1) for x in (q, k, v)), strict=True):
        out.append((a @ b.T / math.sqrt(a.shape[-1])).softmax(-1) @ c)
    return torch.cat(out, -1)


def nested(mixer: Any, x: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """One example through the equations: tokens and slots after the layer."""

    def content(prefix: str, of: Tensor) -> tuple[Tensor, Tensor]:
        names = ["kv_proj"] * 2 if mixer.tied else ["k_proj", "v_proj"]
        k, v = (mixer.get_submodule(prefix + name)(of) for name in names)
        return k, v

    q = mixer.pack_q_proj(mixer.slot_norm(p))
    packed = attention(q, *content("pack_", x), mixer.pack_heads)
    seen = packed[: len(x)] if mixer.dynamic else packed
    y = mixer.out_proj(attention(mixer.q_proj(x), *content("", seen), mixer.heads))
    return y, (mixer.slot_norm(p) if mixer.norm_residual else p) + packed


def step_by_step(
    q: Tensor, k: Tensor, v: Tensor, packing: Tensor, keep: Tensor | None = None
) -> Tensor:
    """The authors' recurrence: two sums, divided by the number of tokens so far."""
    (b, h, n, d), s = q.shape, packing.shape[-1]
    keep = torch.ones(b, n, dtype=torch.bool) if keep is None else keep
    first, second, out = q.new_zeros(b, h, d, s), q.new_zeros(b, h, s, v.shape[-1]), []
    for t in range(n):
        real, count = keep[:, t, None, None, None], keep[:, : t + 1].sum(1).clamp(min=1)
        a = packing[:, :, t, None] * real
        first = first + k[:, :, t, :, None] @ a
        second = second + a.mT @ v[:, :, t, None]
        weights = (q[:, :, t, None] @ first / count[:, None, None, None]).softmax(-1)
        out.append(weights @ second / count[:, None, None, None])
    return torch.cat(out, 2)


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Return the first layer, whose slots are its parameter; padding is left out of each row."""
    if not case.causal:
        y = torch.zeros_like(x)
        for row, tokens in enumerate(x):
            real = torch.arange(len(tokens))
            real = real if case.keep is None else real[case.keep[row]]
            own, _ = nested(mixer, tokens[real], mixer.slots.weight)
            y = y.index_put((torch.tensor(row), real), own)
        return y
    asked = mixer.pack_q_proj(mixer.slots.weight)[None]
    scores = split(mixer.pack_k_proj(x), 3) @ split(asked, 3).mT / 2
    packing = (1 + 2**scores).log2()
    if case.activation == "elu1":
        packing = torch.where(scores > 0, scores + 1, scores.exp())
    names = ["kv_proj"] * 2 if mixer.tied else ["k_proj", "v_proj"]
    k, v = (split(mixer.get_submodule(name)(x), 3) for name in names)
    o = step_by_step(split(mixer.q_proj(x), 3) / 2, k, v, packing, case.keep)
    return mixer.out_proj(o.transpose(1, 2).flatten(2))
