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

from lra.models.ops.chunks import write_rows
from lra.models.ops.linear.features import FeatureMaps, PairWeights, block_rows
from lra.models.ops.numerics import add_product, full_precision, row_slices, sum_dtype

ROWS = 128
"""Queries at a time at most when causal: fewer skip more keys, in more calls."""


def is_cheaper(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    maps: FeatureMaps,
    chunk: int | None,
) -> bool:
    """Tell whether weights of all pairs take no more operations than features.

    Operations of both forms are counted per token and head, for any machine; `chunk` is for causal
    products.
    """
    if maps.pairs is None or not maps.normalise:
        return False
    length, keys, values, features = q.shape[2], k.shape[2], v.shape[3], maps.width
    if chunk is None:
        return 2 * keys * (q.shape[3] + values) <= 4 * features * values
    by_features = 2 * min(chunk, length) * (features + values) + 4 * features * values
    return (length + min(ROWS, length)) * (q.shape[3] + values) <= by_features


class _WeighedRows(NamedTuple):
    """Some queries, the keys that they may attend to, and the weights."""

    q: Float[Tensor, "bh r k"]
    k: Float[Tensor, "bh s k"]
    v: Float[Tensor, "bh s v"]
    weights: Float[Tensor, "bh r s"]
    """Zero for padding, and when causal ahead; `slope` for padding."""
    slope: Float[Tensor, "bh r s"]


class _Whole(NamedTuple):
    """Scaled queries, keys and values, with all heads one after the other."""

    q: Float[Tensor, "bh l k"]
    k: Float[Tensor, "bh s k"]
    v: Float[Tensor, "bh s v"]
    keep: Float[Tensor, "bh 1 s"] | None

    def weigh_rows(self, rows: slice, pairs: PairWeights, *, causal: bool) -> _WeighedRows:
        """Return the weights of the queries in `rows`."""
        seen = slice(0, rows.stop if causal else None)
        q, k, v = self.q[:, rows], self.k[:, seen], self.v[:, seen]
        weights, slope = pairs.value(torch.bmm(q, k.mT))
        if self.keep is not None:
            weights, slope = (x.mul_(self.keep[..., seen]) for x in (weights, slope))
        return _WeighedRows(q, k, v, weights.tril_(rows.start) if causal else weights, slope)


def _whole(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, scale: float) -> _Whole:
    dtype = sum_dtype(v)
    seen = None if keep is None else keep.to(dtype).repeat_interleave(q.shape[1], 0)[:, None]
    q, k, v = (x.to(dtype).flatten(0, 1) for x in (q, k, v))
    return _Whole(q * scale, k, v, seen)


def _cuts(q: Tensor, k: Tensor, *, causal: bool) -> list[slice]:
    rows = block_rows(q, k.shape[2])
    return [*row_slices(q.shape[2], min(rows, ROWS) if causal else rows)] or [slice(0, 0)]


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
                here = whole.weigh_rows(rows, pairs, causal=causal)
                # A sum apart: a product with one column more takes a third longer.
                factor = maps.reciprocal(here.weights.sum(-1)).view(*q.shape[:2], -1)
                total = torch.bmm(here.weights, here.v).view(*factor.shape, -1)
                inverse = write_rows(inverse, rows, factor)
                o = write_rows(o, rows, total.mul_(factor[..., None]))
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
            g = gradient.to(inverse.dtype) * inverse[..., None]
            of_sums = (g * o).sum(-1, keepdim=True).flatten(0, 1)
            g, parts, sums = g.flatten(0, 1), [], None
            for rows in reversed(_cuts(q, k, causal=ctx.causal)):
                here, of_rows = whole.weigh_rows(rows, pairs, causal=ctx.causal), g[:, rows]
                products = torch.baddbmm(of_sums[:, rows], of_rows, here.v.mT, beta=-1)
                products.mul_(here.slope)
                if ctx.causal:
                    products.tril_(rows.start)
                parts.append(torch.bmm(products, here.k))
                by_keys = (products.mT, here.q), (here.weights.mT, of_rows)
                if sums is None:  # the last queries, which see all keys
                    sums = [torch.bmm(*each) for each in by_keys]
                    continue
                for total, each in zip(sums, by_keys, strict=True):
                    add_product(total[:, : here.k.shape[1]], *each)
            dq = parts[0] if len(parts) == 1 else torch.cat(parts[::-1], 1)
            found = (dq.mul_(pairs.scale), *(sums or ()))
        pulled = (x.view(*v.shape[:2], *x.shape[1:]).to(v.dtype) for x in found)
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
    """Mix values of all real keys (if causal, up to each query) by weights of pairs.

    As `feature_product`, where `maps.pairs` is known; keys and values of padding are finite.
    """
    made: Tensor = _PairProduct.apply(q, k, v, keep, maps, causal)  # type: ignore[no-untyped-call]
    return made
