"""PaTH attention: Yang et al. 2025, arXiv:2505.16381; a matrix for each reflection."""

import math
from typing import Any

import torch
from torch import Tensor

from tests.literal.gated import convolved
from tests.literal.heads import joined, normed, of_parts, softmax_over, split

GRIDS = [
    {"masks": ["", "keep", "document", "keep document"], "length": [1, 7, 8, 13, 37],
     "chunk": [128, 8, 5], "small": [False, True], "forget": [False, True], "causal": [True, False],
     "convolution": [3, None, 2], "rank": [2, None], "qk_norm": [False, True],
     "negative_eigenvalues": [True, False], "bias": [False, True]},
    {"masks": ["", "keep document"], "length": [13, 37], "chunk": [128, 8], "forget": [True],
     "forget_scale": ["none", "head"], "small": [False, True]},
]  # fmt: skip


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Return what the real tokens of each document give alone, projected back."""
    return mixer.out_proj(of_parts(lambda part: heads_outputs(mixer, part, case), x, case))


def heads_outputs(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Each key goes through H of all later tokens, up to that of the query."""
    q, k, v = (split(layer(x), 3) for layer in (mixer.q_proj, mixer.k_proj, mixer.v_proj))
    if case.qk_norm:
        q, k = normed(q, mixer.q_norm.weight, 1e-5), normed(k, mixer.k_norm.weight, 1e-5)
    w = x
    for layer in mixer.axis_maps:
        w = w @ layer.weight.mT
    w = split(convolved(mixer, 0, w), 3)
    w = w / (w.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    beta = mixer.beta_map(x).sigmoid().mT * (2 if case.negative_eigenvalues else 1)
    one = torch.eye(q.shape[-1], dtype=x.dtype)
    length, rows = x.shape[1], []
    scale = 1 / math.sqrt(q.shape[-1])
    for i in range(length):
        through, scores = one, []
        fade = torch.zeros_like(beta[:, :, 0])
        for j in range(i, -1, -1):
            read = (q[:, :, i, None] @ through @ k[:, :, j, :, None])[..., 0, 0]
            scores.insert(0, read * scale + fade)
            outer = w[:, :, j, :, None] * w[:, :, j, None]
            through = through @ (one - beta[:, :, j, None, None] * outer)
            if case.forget:
                g = mixer.forget_map(x[:, j]).sigmoid().log()
                fade = fade + g * (scale if case.forget_scale == "head" else 1)
        rows.append(torch.stack([*scores, *[torch.zeros_like(fade)] * (length - 1 - i)], -1))
    sees = torch.ones(length, length, dtype=torch.bool).tril()
    return joined(softmax_over(torch.stack(rows, 2), sees) @ v)
