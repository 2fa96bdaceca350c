"""The Synthesizer as loops over heads: what tests compare `lra.models.ops.synthetic` with.

The logits of each component are written out whole, and none of ours is imported.

Axis letters besides the project's: c components, f features, m the longest input.

Source: Tay, Bahri, Metzler, Juan, Zhao, Zheng 2020, arXiv:2005.00743, section 3.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tests.literal.heads import lowered, rotated, split

EACH = ["dense", "random", "fixed_random", "factorised_dense", "factorised_random", "dot"]
USUAL = {
    "max_length": [23],
    "causal": [False, True],
    "masks": ["", "keep"],
    "length": [23, 18, 1],
    "small": [False, True],
}
GRIDS = [
    {**USUAL, "positions": ["none", "alibi"], "components": [
        *([each] for each in EACH), ["random", "dot"], ["dense", "dot"],
        ["factorised_random", "factorised_dense", "fixed_random"], ["factorised_random", "random"],
        ["dense", "random", "factorised_dense", "factorised_random", "dot"],
    ]},
    {**USUAL, "components": [["dot"]], "positions": ["rotary"]},
    {**USUAL, "causal": [False], "components": [["random", "dot"]], "variant": ["lra"]},
]  # fmt: skip


def dense_logits(
    hidden: Float[Tensor, "l f"], out: Float[Tensor, "m f"], bias: Float[Tensor, " m"]
) -> Float[Tensor, "l l"]:
    """Return relu(hidden) W2^T + b2, cut to the input: one logit for each position."""
    return (hidden.relu() @ out.T + bias)[:, : len(hidden)]


def factorised_dense_logits(
    a: Float[Tensor, "l f"], c: Float[Tensor, "l g"]
) -> Float[Tensor, "l l"]:
    """Return A_ij = a_i[j mod f] c_i[j div f]."""
    inner = a.shape[1]
    return torch.stack([a[:, j % inner] * c[:, j // inner] for j in range(len(a))], -1)


def factorised_random_logits(
    left: Float[Tensor, "m f"], right: Float[Tensor, "m f"], length: int
) -> Float[Tensor, "l l"]:
    """Return R1 R2^T, cut to the input."""
    return (left @ right.T)[:length, :length]


def dot_logits(q: Float[Tensor, "l k"], k: Float[Tensor, "l k"]) -> Float[Tensor, "l l"]:
    """Return q k^T / sqrt(d), the paper's vanilla component."""
    return q @ k.T / math.sqrt(q.shape[1])


def synthesizer_attention(
    logits: Sequence[Float[Tensor, "l l"]],
    v: Float[Tensor, "l v"],
    mixture: Float[Tensor, " c"] | None = None,
    *,
    causal: bool = False,
    keep: Bool[Tensor, " l"] | None = None,
    low: Tensor | float = 0.0,
) -> Float[Tensor, "l v"]:
    """Return softmax(sum_c alpha_c A_c) v of one head; 0 where nothing is seen.

    Args:
        logits: A_c of each component.
        v: values.
        mixture: one number for each component, whose softmax is alpha; None: alpha is 1.
        causal: see no later token.
        keep: what is no padding.
        low: what distance takes off.
    """
    n = len(v)
    total = torch.zeros(n, n, dtype=v.dtype) - low
    for index, part in enumerate(logits):
        if mixture is None:
            total = total + part
        else:
            raw = mixture.exp()
            total = total + raw[index] / raw.sum() * part
    seen = torch.ones(n, n, dtype=torch.bool)
    if causal:
        seen = seen.tril()
    if keep is not None:
        seen = seen & keep
    weights = torch.where(seen, total.exp(), 0)
    weights = weights / weights.sum(1, keepdim=True).clamp_min(1e-300)
    return weights @ v


def logits_of(mixer: Any, component: str, x: Float[Tensor, "l d"], case: Any, h: int) -> Tensor:
    """Return one example's and one head's logits, from the mixer's parameters."""
    length, heads = len(x), mixer.heads
    if component == "dense":
        hidden = mixer.dense_in(x).chunk(heads, -1)[h]
        return dense_logits(hidden, mixer.dense_out[h], mixer.dense_bias[h, :, 0])
    if component == "factorised_dense":
        layers = mixer.first_proj, mixer.second_proj
        return factorised_dense_logits(*(layer(x).chunk(heads, -1)[h] for layer in layers))
    if component == "factorised_random":
        return factorised_random_logits(mixer.left[h], mixer.right[h], length)
    if component == "dot":
        q, k = (split(layer(x)[None], heads) for layer in (mixer.q_proj, mixer.k_proj))
        if case.positions == "rotary":
            q, k = rotated(q), rotated(k)
        return dot_logits(q[0, h], k[0, h])
    return mixer.table[h, :length, :length]


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """The paper's equation, one head of one example after the other."""
    x = x if case.keep is None else x * case.keep[..., None]
    low = lowered(case, mixer.heads, x.shape[1])
    values, length, rows = split(mixer.v_proj(x), mixer.heads), x.shape[1], []
    for b in range(len(x)):
        for h in range(mixer.heads):
            logits = [logits_of(mixer, each, x[b], case, h) for each in case.components]
            o = synthesizer_attention(
                logits, values[b, h], None if mixer.alpha is None else mixer.alpha[:, h, 0, 0],
                causal=case.causal, keep=None if case.keep is None else case.keep[b],
                low=low[h] if case.positions == "alibi" else 0.0,
            )  # fmt: skip
            rows.append(o)
    o = torch.stack(rows).view(len(x), mixer.heads, length, -1)
    return mixer.out_proj(o.transpose(1, 2).flatten(2))
