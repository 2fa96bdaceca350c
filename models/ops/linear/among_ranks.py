"""Attention by features over ranks that hold parts of each sequence: their sums are exchanged.

    o_i = phi(q_i) S / phi(q_i) z,   [S z] = sum over the ranks' own sums of phi(k_j) [v_j 1]

or, causally, over the ranks before and then the tokens up to each. A rank's own sums are of the
size of one state; with features that carry logarithms (`feature_product`) ranks refer theirs to the
largest of all. Where that leaves a row (almost) nothing, on any rank, all compute the same with a
reference for each feature (`exponent_sums`).

Cost: 4 m d operations a token and head, causally 4 m d + 2 C (m + d) and 2 m d more for the sums of
a rank by themselves. Each rank sends one or two states, whatever the length.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from lra.models.context import Context
from lra.models.ops.linear.causal_product import Memory, causal_sums
from lra.models.ops.linear.exponent_sums import (
    Exponents,
    answered_by,
    faint,
    mean_of_past,
    sums_of,
)
from lra.models.ops.linear.feature_product import (
    Sums,
    answers,
    key_gradients,
    key_sums,
    query_gradients,
)
from lra.models.ops.linear.features import FeatureMaps
from lra.models.ops.numerics import finite, without_padding


class _KeySums(torch.autograd.Function):
    """`apply(k, v, keep, maps)`: [S z] of the keys, and the logarithm it refers to."""

    @staticmethod
    def forward(
        ctx: Any, k: Tensor, v: Tensor, keep: Tensor | None, maps: FeatureMaps
    ) -> tuple[Tensor, Tensor]:
        sums, top = key_sums(k, v, keep, maps)
        ctx.maps, ctx.has_top = maps, top is not None
        level = sums.weights.new_zeros(k.shape[:2]) if top is None else top
        ctx.save_for_backward(k, v, keep, level)
        ctx.mark_non_differentiable(level)
        return sums.joined(), level

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        k, v, keep, level = ctx.saved_tensors
        top = level if ctx.has_top else None
        given = key_gradients(k, v, keep=keep, top=top, dsums=gradient, maps=ctx.maps)
        return *given, None, None


class _Answers(torch.autograd.Function):
    """`apply(q, sums, maps, dtype)`: what queries find in sums, and 1 / their sums of weights."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, sums: Tensor, maps: FeatureMaps, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        o, inverse = answers(q, Sums(sums[..., :-1], sums[..., -1]), maps, dtype)
        ctx.maps = maps
        ctx.save_for_backward(q, sums, o, inverse)
        ctx.mark_non_differentiable(inverse)
        return o, inverse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        q, sums, o, inverse = ctx.saved_tensors
        given = query_gradients(q, sums, o=o, inverse=inverse, gradient=gradient, maps=ctx.maps)
        return *given, None, None


class _Ours(NamedTuple):
    """This rank's keys and values, padding as zeros."""

    k: Float[Tensor, "b h l k"]
    v: Float[Tensor, "b h l v"]
    keep: Bool[Tensor, "b l"] | None


def product_among_ranks(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    maps: FeatureMaps,
    context: Context,
    *,
    causal: bool,
    chunk: int,
    keep: Bool[Tensor, "b l"] | None = None,
) -> Float[Tensor, "b h l v"]:
    """Mix the values of kept keys of all ranks or, where causal, of those up to each query.

    Dtypes and empty rows as in `lra.models.ops.linear.feature_product`.

    Args:
        q: This rank's queries.
        k: Its keys.
        v: Its values.
        maps: Of features, at this rank's positions.
        context: The ranks.
        causal: Whether later tokens are hidden.
        chunk: Tokens whose causal weights are formed directly.
        keep: False for padding.
    """
    ours = _Ours(without_padding(k, keep), without_padding(v, keep), keep)
    sums, level = _KeySums.apply(*ours, maps)  # type: ignore[no-untyped-call]
    # A rank of padding alone has no logarithm; its sums are zeros.
    level = level.masked_fill(sums[..., -1].detach().abs().amax(-1) <= 0, -torch.inf)
    if causal:
        past = _of_earlier(sums, level, context)
        o, inverse = causal_sums(q, ours.k, ours.v, keep=keep, past=past, maps=maps, chunk=chunk)
    else:
        total = context.total(
            sums * (level - finite(context.largest(level))).exp()[..., None, None]
        )
        o, inverse = _Answers.apply(q, total, maps, v.dtype)  # type: ignore[no-untyped-call]
    if maps.exponentials is None:
        return o
    seen = _sees_any(keep, context, causal=causal)
    little = torch.tensor([float(faint(inverse, seen))], device=q.device)
    if context.largest(little).item():
        return _without_loss(q, ours, maps.exponentials, context, causal=causal)
    return o


def _of_earlier(
    sums: Float[Tensor, "b h m w"], level: Float[Tensor, "b h"], context: Context
) -> Memory:
    """Return the sums of the ranks before."""
    every, levels = context.collected(sums), context.collected(level)
    before = levels[: context.rank]
    if context.rank:
        top = before.amax(0)
        shares = (before - finite(top)).exp()[..., None, None]
        return Memory((every[: context.rank] * shares).sum(0), finite(top))
    # Of none, but for the exchange: a rank that had no part in it would not answer in backward.
    return Memory(every[0] * 0, torch.zeros_like(level))


def _sees_any(
    keep: Bool[Tensor, "b l"] | None, context: Context, *, causal: bool
) -> Bool[Tensor, "b #l"] | None:
    """Say which queries see a key on any rank; None: all."""
    if keep is None:
        return None
    every = context.collected(keep.any(1).to(torch.uint8)).bool()
    if not causal:
        return every.any(0)[:, None]
    before = every[: context.rank].any(0)[:, None]
    return keep.cummax(1).values | before


def _without_loss(
    q: Tensor, ours: _Ours, sides: tuple[Exponents, Exponents], context: Context, *, causal: bool
) -> Tensor:
    """Compute the same with a reference for each feature."""
    sums, level = sums_of(*ours, sides)
    every, levels = context.collected(sums), context.collected(level)
    if not causal:
        top = levels.amax(0)
        past = (every * (levels - finite(top)).exp()[..., None]).sum(0), top
        return answered_by(q, past, sides).to(ours.v.dtype)
    before = levels[: context.rank]
    top = before.amax(0) if context.rank else torch.full_like(level, -torch.inf)
    shares = (levels - finite(top)).clamp(max=0).exp()[..., None]
    earlier = torch.arange(context.ranks, device=q.device) < context.rank
    shares = shares * earlier.view(-1, *(1 for _ in shares.shape[1:]))
    past = (every * shares).sum(0), finite(top)
    return mean_of_past(q, *ours, sides, sums=past[0], level=past[1])[0]
