"""Nystromformer: Xiong et al. 2021, arXiv:2102.03902, one head after another."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from tests.literal.heads import merged, projected

USUAL = {"landmarks": [1, 4, 8, 40], "length": [24, 29, 5, 1, 12], "masks": ["", "keep"]}
GRIDS = [
    {**USUAL, "inverse": ["iterative"], "iterations": [6, 3], "conv_kernel": [0, 1, 5, 65]},
    {**USUAL, "inverse": ["ridge"], "ridge": [0.1], "conv_kernel": [0, 33]},
    {"landmarks": [4], "inverse": ["exact"], "length": [24, 5], "conv_kernel": [0]},
]
TOLERANCE = {"atol": 1e-9, "rtol": 1e-8, "looser": 100}
"""An inverse of a matrix that has next to none loses digits."""


def six_step_inverse(a: Float[Tensor, "r r"], iterations: int = 6) -> Float[Tensor, "r r"]:
    """Return the iteration towards the Moore-Penrose inverse, for one matrix.

        Z_0 = A^T / (|A|_1 |A|_inf),   Z <- 1/4 Z (13 I - A Z (15 I - A Z (7 I - A Z)))

    Xiong et al. 2021.
    """
    norm = a.abs().sum(0).amax() * a.abs().sum(1).amax()
    z, one = a.T / norm, torch.eye(len(a), dtype=a.dtype)
    for _ in range(iterations):
        z = 0.25 * z @ (13 * one - a @ z @ (15 * one - a @ z @ (7 * one - a @ z)))
    return z


def ridge_inverse(a: Float[Tensor, "r r"], ridge: float) -> Float[Tensor, "r r"]:
    """Return (A^T A + ridge I)^-1 A^T, for one matrix."""
    square: Tensor = a.T @ a + ridge * torch.eye(len(a)).to(a)
    return square.inverse() @ a.T


def nystrom_attention(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    landmarks: int,
    *,
    inverse: Callable[[Tensor], Tensor] = six_step_inverse,
    keep: Bool[Tensor, "b l"] | None = None,
) -> Float[Tensor, "b h l v"]:
    """Return softmax(q K~^T) A^+ softmax(Q~ k^T) v, A = softmax(Q~ K~^T), all over sqrt(d).

    Q~ and K~ are the means of as many stretches of the real tokens as there are landmarks; padding
    gets 0. Xiong et al. 2021.
    """
    out = torch.zeros_like(v)
    for row in range(q.shape[0]):
        real = torch.arange(q.shape[2]) if keep is None else keep[row].nonzero()[:, 0]
        if not len(real):
            continue
        for head in range(q.shape[1]):
            x, y, z = (part[row, head, real] for part in (q, k, v))
            cuts = [c for c in torch.arange(len(real)).tensor_split(landmarks) if len(c)]
            means = [torch.stack([part[c].mean(0) for c in cuts]) for part in (x, y)]
            scale = q.shape[-1] ** -0.5
            first = (scale * x @ means[1].T).softmax(-1)
            small = (scale * means[0] @ means[1].T).softmax(-1)
            last = (scale * means[0] @ y.T).softmax(-1)
            out[row, head, real] = first @ inverse(small) @ last @ z
    return out


def convolved(mixer: Any, v: Float[Tensor, "b h l v"], case: Any) -> Float[Tensor, "b h l v"]:
    """Return the convolution of each head's values along the length, padding being 0."""
    v = v if case.keep is None else v * case.keep[:, None, :, None]
    weight = mixer.core.conv.weight[:, None, :, None]
    return F.conv2d(v, weight, padding=(weight.shape[2] // 2, 0), groups=v.shape[1])


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Attend by landmarks, and add the convolution."""
    q, k, v = projected(mixer, x, case)
    inverses = {
        "exact": torch.linalg.pinv,
        "ridge": partial(ridge_inverse, ridge=case.ridge),
        "iterative": partial(six_step_inverse, iterations=case.iterations),
    }
    inverse = inverses[case.inverse]
    o = nystrom_attention(q, k, v, case.landmarks, inverse=inverse, keep=case.keep)
    if case.conv_kernel:
        o = o + convolved(mixer, v, case)
    return merged(mixer, o, x)
