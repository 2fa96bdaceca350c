"""Attention by features as the papers write it: every weight by itself, or token by token.

    o_i = sum_j w_ij v_j / sum_j w_ij,    w_ij = phi(q_i) . phi(k_j)

where j runs over the keys that count, and to i where causal; a query whose weights add up to 0 gets
0. What tests compare the fast forms of this folder with: it forms the n x n weights, has no
safeguard against overflow, and imports none of ours.

Axis letters besides the project's: m features, f of a projection's rows.

Sources: linear attention, Katharopoulos et al. 2020, arXiv:2006.16236; Shen et al. 2018,
arXiv:1812.01243; Performer, Choromanski et al. 2020, arXiv:2009.14794; cosFormer, Qin et al. 2022,
arXiv:2202.08791; Gaussian attention, Chen et al. 2021, arXiv:2111.00035.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

FEATURE_MAPS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "elu1": lambda x: torch.nn.functional.elu(x) + 1,
    "relu_eps": lambda x: x.relu() + 1e-3,
    "sqr": lambda x: x**2,
    "exp": lambda x: x.exp(),
}
"""phi of linear attention, entry by entry, by the name that the family gives it."""

GENERALISED_KERNELS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "exp": torch.exp,
    "gelu": torch.nn.functional.gelu,
    "sigmoid": torch.sigmoid,
    "abs": torch.abs,
    "tanh": torch.tanh,
    "cos": torch.cos,
    "identity": lambda x: x,
    "elu1": lambda x: torch.nn.functional.elu(x) + 1,
}
"""f of the Performer's generalised features f(W x) + epsilon."""


def counting_weights(
    weights: Float[Tensor, "b h l s"],
    *,
    keep: Bool[Tensor, "b s"] | None = None,
    causal: bool = False,
) -> Float[Tensor, "b h l s"]:
    """Return the weights with zeros where a key is padding or later than its query."""
    if causal:
        weights = weights.tril()
    return weights if keep is None else weights * keep[:, None, None, :]


def weighted_mean(
    weights: Float[Tensor, "b h l s"],
    v: Float[Tensor, "b h s v"],
    *,
    keep: Bool[Tensor, "b s"] | None = None,
    causal: bool = False,
) -> Float[Tensor, "b h l v"]:
    """Return the mean of the values by the weights that count; 0 where they add up to 0."""
    weights = counting_weights(weights, keep=keep, causal=causal)
    total = weights.sum(-1, keepdim=True)
    return torch.where(total != 0, weights @ v / torch.where(total != 0, total, 1), 0)


def sums_of(
    weights: Float[Tensor, "b h l s"], v: Float[Tensor, "b h s v"], case: Any
) -> Float[Tensor, "b h l v"]:
    """Return the sums of values by the weights that a case lets count."""
    return counting_weights(weights, keep=case.keep, causal=case.causal) @ v


def mean_of(
    weights: Float[Tensor, "b h l s"], v: Float[Tensor, "b h s v"], case: Any
) -> Float[Tensor, "b h l v"]:
    """Return the mean by the weights that a case lets count; 0 where they add up to 0."""
    return weighted_mean(weights, v, keep=case.keep, causal=case.causal)


def attention_from_exponents(
    a: Float[Tensor, "b h l m"],
    c: Float[Tensor, "b h s m"],
    v: Float[Tensor, "b h s v"],
    *,
    keep: Bool[Tensor, "b s"] | None = None,
    causal: bool = False,
) -> Float[Tensor, "b h l v"]:
    """Return the mean by w_ij = sum_m exp(a_im + c_jm), of exponents of any size.

    Each row's largest weight is taken as 1, so that none overflows and not all vanish.
    """
    scores = (a[:, :, :, None] + c[:, :, None]).logsumexp(-1)
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool)
    seen = (seen.tril() if causal else seen).expand(scores.shape)
    if keep is not None:
        seen = seen & keep[:, None, None]
    top = scores.detach().masked_fill(~seen, -torch.inf).amax(-1, keepdim=True)
    weights = (scores - top.masked_fill(top == -torch.inf, 0)).masked_fill(~seen, -torch.inf).exp()
    return weighted_mean(weights, v)


def efficient_attention(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    *,
    keep: Bool[Tensor, "b s"] | None = None,
) -> Float[Tensor, "b h l v"]:
    """Return softmax(q) (softmax(k)^T v): over the channels of q, over the length of k.

    Shen et al. 2018; the softmax over the length leaves padding out.
    """
    if keep is not None:
        k = k.masked_fill(~keep[:, None, :, None], -torch.inf)
    return q.softmax(-1) @ (k.softmax(-2).mT @ v)


def positive_features(
    x: Float[Tensor, "... k"], W: Float[Tensor, "... f k"]
) -> Float[Tensor, "... f"]:
    """Return phi(x) = exp(W x - |x|^2 / 2) / sqrt(f), of x already scaled."""
    return torch.exp(x @ W.mT - x.square().sum(-1, keepdim=True) / 2) / math.sqrt(W.shape[-2])


def hyperbolic_features(
    x: Float[Tensor, "... k"], W: Float[Tensor, "... f k"]
) -> Float[Tensor, "... m"]:
    """Return phi(x) = [exp(W x), exp(-W x)] exp(-|x|^2 / 2) / sqrt(2 f)."""
    return torch.cat((positive_features(x, W), positive_features(x, -W)), dim=-1) / math.sqrt(2)


def trigonometric_features(
    x: Float[Tensor, "... k"], W: Float[Tensor, "... f k"]
) -> Float[Tensor, "... m"]:
    """Return phi(x) = [cos W x, sin W x] exp(|x|^2 / 2) / sqrt(f)."""
    wave = torch.cat(((x @ W.mT).cos(), (x @ W.mT).sin()), dim=-1) / math.sqrt(W.shape[-2])
    return wave * torch.exp(x.square().sum(-1, keepdim=True) / 2)


SOFTMAX_KERNELS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "softmax": positive_features,
    "hyperbolic": hyperbolic_features,
    "trigonometric": trigonometric_features,
}
"""Features of (x, W) whose products have the mean exp(x . y) over draws of W."""


def performer_features(
    x: Float[Tensor, "... k"], W: Float[Tensor, "... f k"], kernel: str, *, epsilon: float = 1e-3
) -> Float[Tensor, "... m"]:
    """Return phi(x / d^(1/4)) of FAVOR+, or f(W x / d^(1/4)) + epsilon of a generalised kernel.

    Args:
        x: queries or keys, not yet scaled.
        W: the projection.
        kernel: a name of `SOFTMAX_KERNELS` or `GENERALISED_KERNELS`.
        epsilon: of generalised kernels alone.
    """
    x = W.shape[-1] ** -0.25 * x
    if kernel in SOFTMAX_KERNELS:
        return SOFTMAX_KERNELS[kernel](x, W)
    return GENERALISED_KERNELS[kernel](x @ W.mT) + epsilon


def released_performer_attention(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    W: Float[Tensor, "f k"],
    epsilon: float,
    *,
    keep: Bool[Tensor, "b s"] | None = None,
    causal: bool = False,
    normalise: bool = True,
) -> Float[Tensor, "b h l v"]:
    """Return what the Performer's released code computes: positive features, stabilised.

        phi(x) = (exp(W x - |x|^2 / 2 - max) + epsilon) / sqrt(f)

    with the maximum of W x over the features of a query, or over all keys and their features; a
    sum of weights below 1e-6 is raised by 2e-6.
    """
    scale, features = W.shape[1] ** -0.25, len(W)

    def phi(x: Tensor, top: Tensor) -> Tensor:
        square = (scale * x).square().sum(-1, keepdim=True)
        return (torch.exp(scale * x @ W.T - square / 2 - top) + epsilon) / math.sqrt(features)

    u_q, u_k = (scale * x.detach() @ W.T for x in (q, k))
    if keep is not None:
        u_k = u_k.masked_fill(~keep[:, None, :, None], -1e9)
    weights = phi(q, u_q.amax(-1, keepdim=True)) @ phi(k, u_k.amax((-2, -1), keepdim=True)).mT
    weights = counting_weights(weights, keep=keep, causal=causal)
    if not normalise:
        return weights @ v
    total = weights.sum(-1, keepdim=True)
    return weights @ v / (total + 2e-6 * (total.abs() <= 1e-6))
