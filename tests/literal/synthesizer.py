"""The Synthesizer as loops over heads: what tests compare `lra.models.ops.synthetic` with.

The logits of each component are written out whole, and none of ours is imported.

Axis letters besides the project's: c components, f features, m the longest input.

Source: Tay, Bahri, Metzler, Juan, Zhao, Zheng 2020, arXiv:2005.00743, section 3.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor


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
) -> Float[Tensor, "l v"]:
    """Return softmax(sum_c alpha_c A_c) v of one head; 0 where nothing is seen.

    Args:
        logits: A_c of each component.
        v: values.
        mixture: one number for each component, whose softmax is alpha; None: alpha is 1.
        causal: see no later token.
        keep: what is no padding.
    """
    n = len(v)
    total = torch.zeros(n, n, dtype=v.dtype)
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
