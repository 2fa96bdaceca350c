"""Attention of a few global tokens to all tokens, through separate projections.

With g global tokens, H heads of width d and D = H d, projecting all n tokens to keys and values
takes 4 n D^2 operations, and attention takes 4 n g D. Because q (W x) = (q W) x, the queries can be
multiplied by the projections instead. The tokens themselves are then keys and values, which takes
4 n g H D operations: less if g (H - 1) < D, and without new tensors of the size of x.
"""

from collections.abc import Callable
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

Weigh: TypeAlias = Callable[[Tensor], Tensor]
"""From scores to weights: `global_weights` with all but its first argument bound."""


def global_weights(
    scores: Float[Tensor, "b h g s"],
    positions: Int[Tensor, "b g"],
    *,
    causal: bool,
    keep: Bool[Tensor, "b s"] | None,
    slopes: Float[Tensor, " h"] | None,
    dropout: float,
) -> Float[Tensor, "b h g s"]:
    """Return the weights of tokens at `positions` on all tokens; 0 without a visible key."""
    query, key = positions[:, None, :, None], torch.arange(scores.shape[-1], device=scores.device)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if slopes is not None:
        scores = scores - slopes[:, None, None].to(scores.dtype) * (query - key).abs()
    visible = key <= query if causal else None
    if keep is not None:
        real = keep[:, None, None]
        visible = real if visible is None else real & visible
    if visible is None:
        return F.dropout(scores.softmax(-1), dropout)
    weights = scores.masked_fill(~visible, torch.finfo(scores.dtype).min).softmax(-1)
    return F.dropout(weights.masked_fill(~visible, 0.0), dropout)


def see_projected(
    q: Float[Tensor, "b h g k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s k"],
    weigh: Weigh,
) -> Float[Tensor, "b h g k"]:
    """Return the attention of g queries to projected keys and values; `weigh` gives the weights."""
    return weigh((q * q.shape[-1] ** -0.5) @ k.mT).to(v.dtype) @ v


def see_tokens(
    q: Float[Tensor, "b h g k"],
    x: Float[Tensor, "b s d"],
    key: nn.Linear,
    value: nn.Linear,
    weigh: Weigh,
) -> Float[Tensor, "b h g k"]:
    """Return the attention of g queries to keys key(x) and values value(x), without making them."""
    heads_and_queries = q.shape[1:3]
    q = q * q.shape[-1] ** -0.5
    queries_for_x = torch.einsum("bhgk,hkd->bhgd", q, _by_head(key.weight, q)).flatten(1, 2)
    scores = torch.unflatten(queries_for_x @ x.mT, 1, heads_and_queries)
    if key.bias is not None:
        scores = scores + torch.einsum("bhgk,hk->bhg", q, _by_head(key.bias, q))[..., None]
    weights = weigh(scores)
    means = torch.unflatten(weights.flatten(1, 2).to(x.dtype) @ x, 1, heads_and_queries)
    o = torch.einsum("bhgd,hkd->bhgk", means, _by_head(value.weight, q))  # values of means
    if value.bias is not None:
        o = o + weights.sum(-1, keepdim=True).to(o.dtype) * _by_head(value.bias, q)[:, None]
    return o


def _by_head(
    parameter: Float[Tensor, "d *e"], q: Float[Tensor, "b h g k"]
) -> Float[Tensor, "h k *e"]:
    """Return a weight or bias with its d = h k rows split into the heads of `q`."""
    return torch.unflatten(parameter, 0, (q.shape[1], q.shape[3]))
