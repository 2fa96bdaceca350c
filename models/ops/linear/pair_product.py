"""Attention by features of which each pair's inner product has a closed form, for short sequences.

    o_i = sum_j w(q_i · k_j) v_j / sum_j w(q_i · k_j)     over all j, or over j <= i when causal

No feature is made: weights are formed for some queries at a time, causally with the keys up to the
last of them, and once more in backward, so that nothing of length x length is kept.

Cost: 2 l (k + v) operations a token and head, causally half of it; `is_cheaper` compares it with
that of features.
"""

from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from lra.models.ops.linear.feature_product import augment, output_gradient
from lra.models.ops.linear.features import FeatureMaps, PairWeights, block_rows
from lra.models.ops.numerics import blocks, full_precision, sum_dtype

ROWS = 128
"""Queries at a time at most when causal: fewer skip more keys, in more calls."""


def is_cheaper(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    maps: FeatureMaps,
    chunk: int | None,
) -> bool:
    """Return whether weights of pairs take no more operations than features; `chunk` when causal.

    Of both forms products are counted, a token and head, whatever the machine.
    """
    if maps.pairs is None:
        return False
    length, keys, values, features = q.shape[2], k.shape[2], v.shape[3], maps.width
    if chunk is None:
        return 2 * keys * (q.shape[3] + values) <= 4 * features * values
    by_features = 2 * min(chunk, length) * (features + values) + 4 * features * values
    return (length + min(ROWS, length)) * (q.shape[3] + values) <= by_features


class _WeighedRows(NamedTuple):
    """Some queries and the keys that they may see."""

    q: Float[Tensor, "bh r k"]
    k: Float[Tensor, "bh s k"]
    values: Float[Tensor, "bh s w"]
    """[v 1], zero for padding."""
    weights: Float[Tensor, "bh r s"]
    slope: Float[Tensor, "bh r s"]


def _rows(
    whole: tuple[Tensor, ...], rows: slice, pairs: PairWeights, *, causal: bool
) -> _WeighedRows:
    seen = slice(0, rows.stop if causal else None)
    q, (k, values) = whole[0][:, rows], (x[:, seen] for x in whole[1:])
    weights, slope = pairs.value(torch.bmm(q, k.mT))
    return _WeighedRows(q, k, values, weights.tril_(rows.start) if causal else weights, slope)


def _whole(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, scale: float
) -> tuple[Float[Tensor, "bh l k"], Float[Tensor, "bh s k"], Float[Tensor, "bh s w"]]:
    dtype = sum_dtype(v)
    values = augment(v, 1.0, dtype)
    if keep is not None:
        values *= keep[:, None, :, None]
    return (q.to(dtype) * scale).flatten(0, 1), k.to(dtype).flatten(0, 1), values.flatten(0, 1)


def _cuts(q: Tensor, k: Tensor, *, causal: bool) -> list[slice]:
    rows = block_rows(q, k.shape[2])
    return [*blocks(q.shape[2], min(rows, ROWS) if causal else rows)]


class _PairProduct(torch.autograd.Function):
    """`apply(q, k, v, keep, maps, causal)`."""

    @staticmethod
    def forward(  # noqa: PLR0917 (autograd functions take positions only)
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        keep: Tensor | None,
        maps: FeatureMaps,
        causal: bool,
    ) -> Tensor:
        o = v.new_empty((*q.shape[:3], v.shape[3]))
        inverse = v.new_empty(q.shape[:3], dtype=sum_dtype(v))
        pairs = cast(PairWeights, maps.pairs)
        with full_precision(v):
            whole = _whole(q, k, v, keep, pairs.scale)
            for rows in _cuts(q, k, causal=causal):
                here = _rows(whole, rows, pairs, causal=causal)
                total = torch.bmm(here.weights, here.values)
                total = total.view(*q.shape[:2], *total.shape[1:])
                inverse[:, :, rows] = factor = maps.reciprocal(total[..., -1])
                o[:, :, rows] = total[..., :-1] * factor[..., None]
        ctx.maps, ctx.causal = maps, causal
        ctx.save_for_backward(q, k, v, keep, o, inverse)
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, keep, o, inverse = ctx.saved_tensors
        pairs = cast(PairWeights, ctx.maps.pairs)
        with full_precision(v):
            whole = _whole(q, k, v, keep, pairs.scale)
            g = output_gradient(gradient, o, inverse, ctx.maps).flatten(0, 1)
            dq, dk = torch.empty_like(whole[0]), torch.zeros_like(whole[1])
            dv = torch.zeros_like(whole[2][..., :-1])
            for rows in reversed(_cuts(q, k, causal=ctx.causal)):
                here, of_rows = _rows(whole, rows, pairs, causal=ctx.causal), g[:, rows]
                products = torch.bmm(of_rows, here.values.mT).mul_(here.slope)
                if ctx.causal:
                    products.tril_(rows.start)
                dq[:, rows] = torch.bmm(products, here.k)
                seen = here.k.shape[1]
                dk[:, :seen] += torch.bmm(products.mT, here.q)
                dv[:, :seen] += torch.bmm(here.weights.mT, of_rows[..., :-1])
            dq *= pairs.scale
            if keep is not None:
                dv.view_as(v).mul_(keep[:, None, :, None])
        pulled = (x.view(*v.shape[:2], *x.shape[1:]).to(v.dtype) for x in (dq, dk, dv))
        return *pulled, None, None, None


def pair_product(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    maps: FeatureMaps,
    *,
    causal: bool,
    keep: Bool[Tensor, "b s"] | None = None,
) -> Float[Tensor, "b h l v"]:
    """Mix the values of all kept keys, or when causal of those up to each query.

    As `feature_product`, where `maps.pairs` is known; keys and values of padding are finite.
    """
    made: Tensor = _PairProduct.apply(q, k, v, keep, maps, causal)  # type: ignore[no-untyped-call]
    return made
