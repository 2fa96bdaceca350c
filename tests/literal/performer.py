"""Performer: Choromanski et al. 2020, arXiv:2009.14794; the same draw with all weights."""

from typing import Any

import torch
from torch import Tensor

from tests.literal.features import (
    GENERALISED_KERNELS,
    SOFTMAX_KERNELS,
    mean_of,
    performer_features,
    released_performer_attention,
    sums_of,
)
from tests.literal.heads import merged, projected

USUAL = {
    "width": [16],
    "heads": [2],
    "causal": [False, True],
    "masks": ["", "keep"],
    "length": [5, 37],
    "small": [False, True],
}
GRIDS = [
    {**USUAL, "features": [11], "kernel": [*SOFTMAX_KERNELS]},
    {**USUAL, "features": [11], "causal": [True], "kernel": [*SOFTMAX_KERNELS], "chunk": [3, 64],
     "key_max": ["running", "global"]},
    {**USUAL, "features": [11], "kernel": [*GENERALISED_KERNELS], "renormalise": [True, False]},
    {**USUAL, "kernel": [*GENERALISED_KERNELS], "projected": [False],
     "feature_epsilon": [0.25, None]},
    {**USUAL, "features": [11], "stabiliser": ["reference"], "key_max": ["global"],
     "feature_epsilon": [1e-6, 1e-4], "renormalise": [True, False]},
    {**USUAL, "causal": [False], "features": [11], "stabiliser": ["port"],
     "scaled_twice": [False, True], "padding": ["exact", "original"]},
    {**USUAL, "causal": [False], "masks": [""], "variant": ["lra"], "features": [2]},
    {**USUAL, "masks": [""], "variant": ["lra"], "kernel": ["relu"]},
    {"width": [16], "heads": [2], "features": [11], "masks": ["source"],
     "kernel": ["softmax", "relu"]},
]  # fmt: skip
TOLERANCE = {"atol": 1e-8, "rtol": 1e-7}
"""Sums of weights of both signs cancel, which costs digits."""


def port(mixer: Any, qkv: list[Tensor], case: Any) -> Tensor:
    """One maximum for the keys of all rows, 1e-4, no guard; original padding stays in the sums."""
    W, count = mixer.core.projection, case.features
    scale = mixer.head_width ** (-0.5 if case.scaled_twice else -0.25)
    q, k, v = qkv
    x, y = scale * q, scale * k
    counts = torch.ones(2, 1, 1, k.shape[2], dtype=torch.bool)
    if case.keep is not None and case.padding == "original":
        y, v = (part.where(case.keep[:, None, :, None], 0.0) for part in (y, v))
    elif case.keep is not None:
        counts = case.keep[:, None, None]
    top = (y @ W.T).detach().masked_fill(~counts.mT, -torch.inf).amax()

    def phi(part: Tensor, largest: Tensor) -> Tensor:
        square = part.square().sum(-1, keepdim=True) / 2
        return (torch.exp(part @ W.T - square - largest) + 1e-4) / count**0.5

    weights = phi(x, (x @ W.T).detach().amax(-1, keepdim=True)) @ phi(y, top).mT * counts
    return weights @ v / weights.sum(-1, keepdim=True)


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Return the estimate of these features, or what released code computes."""
    q, k, v = projected(mixer, x, case)
    kernel, stabiliser = case.kernel, case.stabiliser
    lra, W = case.variant == "lra", mixer.core.projection
    if stabiliser == "port":
        return merged(mixer, port(mixer, [q, k, v], case), x)
    if stabiliser == "reference" or (lra and kernel == "softmax"):
        o = released_performer_attention(
            q, k, v, W, case.feature_epsilon or 1e-6, keep=case.keep,
            causal=case.causal, normalise=case.renormalise,
        )  # fmt: skip
        return merged(mixer, o, x)
    if lra:
        phi_q, phi_k = q.relu() + 1e-3, k.relu() + 1e-3
    elif W is None:
        epsilon = 1e-3 if case.feature_epsilon is None else case.feature_epsilon
        f, scale = GENERALISED_KERNELS[kernel], mixer.head_width**-0.25
        phi_q, phi_k = f(scale * q) + epsilon, f(scale * k) + epsilon
    else:
        phi_q, phi_k = (performer_features(part, W, kernel) for part in (q, k))
    weights = phi_q @ phi_k.mT
    together = mean_of if case.renormalise else sums_of
    return merged(mixer, together(weights, v, case), x)
