"""Gaussian attention and the Skyformer: Chen et al. 2021, arXiv:2111.00035."""

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tests.literal.heads import merged, projected
from tests.literal.nystromformer import six_step_inverse

USUAL = {"masks": ["", "keep"], "length": [1, 13, 30]}
GRIDS = [
    {**USUAL, "form": ["skyformer"], "landmarks": [8, 80, 4], "gamma": [0.1, 0.5]},
    {**USUAL, "form": ["kernelised"], "small": [False, True]},
    {"masks": ["source"], "form": ["kernelised"]},
]
TOLERANCE = {"atol": 1e-9, "rtol": 1e-8, "looser": 100}
DRAW_BITS = 31


def gaussian_weights(
    x: Float[Tensor, "... l k"], y: Float[Tensor, "... s k"]
) -> Float[Tensor, "... l s"]:
    """Return exp(-|x_i - y_j|^2 / (2 sqrt(d))), from the differences; they add up to no total.

    Chen et al. 2021; d is the width of x and y.
    """
    distance = (x[..., :, None, :] - y[..., None, :, :]).square().sum(-1)
    return torch.exp(-distance / (2 * math.sqrt(x.shape[-1])))


def skyformer_attention(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    draws: Float[Tensor, "2 m"],
    *,
    kernel: Callable[[Tensor, Tensor], Tensor],
    keep: Bool[Tensor, "b l"] | None = None,
    gamma: float = 0.1,
) -> Float[Tensor, "b h l v"]:
    """Return kernel(q, Z) M^-1 kernel(Z, k) v with M = kernel(Z, Z) + gamma I.

    Landmarks Z are real queries and keys, drawn independently. M^-1 is S (S M S)^-1 S, where S has
    the inverse roots of M's row sums, and six steps invert. Padding gets 0. Chen et al. 2021.

    Args:
        q: queries.
        k: keys.
        v: values.
        draws: numbers from [0, 1): a row for the landmarks among the queries, and one for the keys;
            u takes token floor(u n) of n real ones.
        kernel: weights of (n, d) and (m, d) vectors, (n, m); the paper's is the Gaussian.
        keep: what is no padding.
        gamma: the regulariser.
    """
    out = torch.zeros_like(v)
    for row in range(q.shape[0]):
        real = torch.arange(q.shape[2]) if keep is None else keep[row].nonzero()[:, 0]
        if not len(real):
            continue
        for head in range(q.shape[1]):
            x, y, z = (part[row, head, real] for part in (q, k, v))
            indices = (draws * len(real)).long()
            landmarks = torch.cat((x[indices[0]], y[indices[1]]))
            small = kernel(landmarks, landmarks) + gamma * torch.eye(len(landmarks)).to(x)
            root = small.sum(1) ** -0.5
            inverse = six_step_inverse(root[:, None] * small * root)
            middle = root[:, None] * inverse * root
            out[row, head, real] = kernel(x, landmarks) @ middle @ kernel(landmarks, y) @ z
    return out


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Weigh all pairs by the Gaussian kernel, or approach that by landmarks."""
    q, k, v = projected(mixer, x, case)
    if case.form == "kernelised":
        weights = gaussian_weights(q, k)
        if case.keep is not None:
            weights = weights * case.keep[:, None, None]
        return merged(mixer, weights @ v, x)
    draws = mixer.core.draws.double() / 2**DRAW_BITS
    o = skyformer_attention(
        q, k, v, draws, kernel=gaussian_weights, keep=case.keep, gamma=case.gamma
    )
    return merged(mixer, o, x)
