"""Attention inside a window as its definition: all scores, and one mask.

What tests compare the fast forms of this folder with: it forms the n x n scores and imports none
of ours.

Axis letters besides the project's: g keys that every query sees besides its window.

Source: Longformer, Beltagy et al. 2020, arXiv:2004.05150, section 3; ALiBi, Press et al. 2022,
arXiv:2108.12409.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def band(length: int, window: int, *, causal: bool = False) -> Bool[Tensor, "l l"]:
    """Return which key (column) lies at most `window` from which query; none behind, if causal."""
    distance = torch.arange(length)[:, None] - torch.arange(length)
    return (distance <= window) & (distance >= (0 if causal else -window))


def attention_in_sight(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    sees: Bool[Tensor, "#b #h l s"],
    lowered: Float[Tensor, "#b #h l s"] | None = None,
) -> Float[Tensor, "b h l v"]:
    """Return softmax(q k^T / sqrt(d) - lowered) v over what each query sees; 0 where nothing."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if lowered is not None:
        scores = scores - lowered
    scores = scores.masked_fill(~sees, -1e300)
    weights = (scores - scores.amax(-1, keepdim=True)).exp() * sees
    return weights @ v / weights.sum(-1, keepdim=True).clamp(min=1e-300)


def window_attention(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    *,
    window: int,
    causal: bool,
    dilation: int = 1,
    behind: int | None = None,
    keep: Bool[Tensor, "b s"] | None = None,
    slopes: Float[Tensor, " h"] | None = None,
    beyond: tuple[
        Float[Tensor, "b h g k"],
        Float[Tensor, "b h g v"],
        Int[Tensor, "b g"],
        Bool[Tensor, "b g"] | None,
    ]
    | None = None,
) -> Float[Tensor, "b h l v"]:
    """Return softmax attention over -behind <= (j - i) / dilation <= window, in whole steps.

    Args:
        q: queries; the last of them stands at the last key.
        k: keys, as many as queries or more.
        v: values.
        window: steps seen ahead, and behind where `behind` is None.
        causal: see no later key.
        dilation: tokens of a step.
        behind: steps seen behind.
        keep: which keys are no padding.
        slopes: what a token of distance takes off a head's scores.
        beyond: keys that all see besides, their values, their positions counted from the first
            query, and which are real (None: all).
    """
    length, total = q.shape[2], k.shape[2]
    query, key = torch.arange(length)[:, None], torch.arange(total) - (total - length)
    step = key - query
    past = window if behind is None else behind
    sees = (step % dilation == 0) & (step >= -past * dilation) & (step <= window * dilation)
    sees, step = sees[None, None].expand(len(q), 1, -1, -1), step.expand(len(q), -1, -1)
    if keep is not None:
        sees = sees & keep[:, None, None]
    if beyond is not None:
        keys, values, where, present = beyond
        k, v = torch.cat((k, keys), 2), torch.cat((v, values), 2)
        step = torch.cat((step, where[:, None] - query), -1)
        real = torch.ones_like(where) > 0 if present is None else present
        sees = torch.cat((sees, real[:, None, None].expand(-1, 1, length, -1)), -1)
    if causal:
        sees = sees & (step <= 0)[:, None]
    lowered = None
    if slopes is not None:
        lowered = slopes.double()[:, None, None] * step.abs()[:, None]
    return attention_in_sight(q, k, v, sees, lowered)


def longformer_attention(
    local: tuple[Float[Tensor, "b h l k"], Float[Tensor, "b h l k"], Float[Tensor, "b h l v"]],
    full: tuple[Float[Tensor, "b h l k"], Float[Tensor, "b h l k"], Float[Tensor, "b h l v"]],
    is_global: Bool[Tensor, "b l"],
    *,
    window: int,
    dilation: tuple[int, ...],
    causal: bool,
    keep: Bool[Tensor, "b l"] | None = None,
    slopes: Float[Tensor, " h"] | None = None,
) -> Float[Tensor, "b h l v"]:
    """Return attention to a window and to global tokens; then the rows of the global tokens.

    One softmax over both, every key once. Beltagy et al. 2020, section 3.1.

    Args:
        local: queries, keys and values of all tokens.
        full: those of the rows of global tokens, which see everything.
        is_global: tokens that all see and that see all.
        window: steps seen on each side.
        dilation: tokens of a step, for each head.
        causal: see no later token.
        keep: what is no padding.
        slopes: what a token of distance takes off a head's scores.
    """
    length = is_global.shape[1]
    position = torch.arange(length)
    distance = position[:, None] - position
    step = torch.tensor(dilation)[:, None, None]
    near = (distance % step == 0) & (distance.abs() <= window * step)
    allowed = torch.ones(len(is_global), 1, length, length, dtype=torch.bool)
    if keep is not None:
        allowed = allowed & keep[:, None, None]
    if causal:
        allowed = allowed & (distance >= 0)
    lowered = None
    if slopes is not None:
        lowered = (slopes.double()[:, None, None] * distance.abs())[None]
    o = attention_in_sight(*local, (near | is_global[:, None, None]) & allowed, lowered)
    if is_global.any():
        top = attention_in_sight(*full, allowed, lowered)
        o = torch.where(is_global[:, None, :, None], top, o)
    return o
