"""Attention by features whose inner products have a closed form w(q · k), for short sequences.

    o_i = sum_j w(q_i · k_j) v_j / sum_j w(q_i · k_j)     over all j, or over j <= i when causal

No features are computed. Weights are computed for a block of queries at a time (if causal, with the
keys up to the block's end), and again in backward, so that no length x length matrix is stored.

Cost: 2 l (k + v) operations per token and head, if causal half of it; `is_cheaper` compares this
with the cost of features.
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
"""Largest number of queries in a causal block; smaller blocks skip more keys in more calls."""


def is_cheaper(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    maps: FeatureMaps,
    chunk: int | None,
) -> bool:
    """Return whether weights of all pairs take no more operations than features.

    Operations of both forms are counted per token and head. `chunk` is the chunk size of causal
    products; None: the product is not causal.
    """
    if maps.pairs is None or not maps.normalise:
        return False
    length, keys, values, features = q.shape[2], k.shape[2], v.shape[3], maps.width
    if chunk is None:
        return 2 * keys * (q.shape[3] + values) <= 4 * features * values
    # A causal block of queries reads (length + ROWS) / 2 keys on average.
    by_features = 2 * min(chunk, length) * (features + values) + 4 * features * values
    return (length + min(ROWS, length)) * (q.shape[3] + values) <= by_features


class _WeighedRows(NamedTuple):
    """Some queries, the keys that they may attend to, and the weights."""

    q: Float[Tensor, "bh r k"]
    k: Float[Tensor, "bh s k"]
    v: Float[Tensor, "bh s v"]
    weights: Float[Tensor, "bh r s"]
    """0 for padding and, if causal, for later keys."""
    slope: Float[Tensor, "bh r s"]
    """Derivatives of the weights by q · k; 0 for padding."""


class _Whole(NamedTuple):
    """Scaled queries, keys and values, with all heads one after the other."""

    q: Float[Tensor, "bh l k"]
    k: Float[Tensor, "bh s k"]
    v: Float[Tensor, "bh s v"]
    keep: Float[Tensor, "bh 1 s"] | None

    def weigh_rows(self, rows: slice, pairs: PairWeights, *, causal: bool) -> _WeighedRows:
        """Return the weights of the queries in `rows`."""
        visible = slice(0, rows.stop if causal else None)
        q, k, v = self.q[:, rows], self.k[:, visible], self.v[:, visible]
        weights, slope = pairs.value(torch.bmm(q, k.mT))
        if self.keep is not None:
            weights, slope = (x.mul_(self.keep[..., visible]) for x in (weights, slope))
        return _WeighedRows(q, k, v, weights.tril_(rows.start) if causal else weights, slope)


def _join_heads(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, scale: float) -> _Whole:
    """Return queries times `scale`, keys, values and mask in float32 or float64, by row."""
    dtype = sum_dtype(v)
    mask = None if keep is None else keep.to(dtype).repeat_interleave(q.shape[1], 0)[:, None]
    q, k, v = (x.to(dtype).flatten(0, 1) for x in (q, k, v))
    return _Whole(q * scale, k, v, mask)


def _cut_queries(q: Tensor, k: Tensor, *, causal: bool) -> list[slice]:
    """Return slices of queries, so that the weights of a slice have a bounded size."""
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
        """Return sum_j w(q_i · k_j) v_j / sum_j w(q_i · k_j), a block of queries at a time."""
        o = v.new_empty((*q.shape[:3], v.shape[3]))
        inverse = v.new_empty(q.shape[:3], dtype=sum_dtype(v))
        pairs = cast(PairWeights, maps.pairs)
        with full_precision(v):
            inputs = _join_heads(q, k, v, keep, pairs.scale)
            for rows in _cut_queries(q, k, causal=causal):
                block = inputs.weigh_rows(rows, pairs, causal=causal)
                # A separate sum, because a product with one more column takes a third longer.
                factor = maps.reciprocal(block.weights.sum(-1)).view(*q.shape[:2], -1)
                total = torch.bmm(block.weights, block.v).view(*factor.shape, -1)
                inverse = write_rows(inverse, rows, factor)
                o = write_rows(o, rows, total.mul_(factor[..., None]))
        ctx.maps, ctx.causal = maps, causal
        ctx.save_for_backward(q, k, v, keep, o, inverse)
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of q, k and v; the weights are computed again."""
        q, k, v, keep, o, inverse = ctx.saved_tensors
        pairs = cast(PairWeights, ctx.maps.pairs)
        with full_precision(v):
            inputs = _join_heads(q, k, v, keep, pairs.scale)
            g = gradient.to(inverse.dtype) * inverse[..., None]
            dsums = (g * o).sum(-1, keepdim=True).flatten(0, 1)
            g, dq_blocks, sums = g.flatten(0, 1), [], None
            for rows in reversed(_cut_queries(q, k, causal=ctx.causal)):
                block, block_gradient = (
                    inputs.weigh_rows(rows, pairs, causal=ctx.causal),
                    g[:, rows],
                )
                dproducts = torch.baddbmm(dsums[:, rows], block_gradient, block.v.mT, beta=-1)
                dproducts.mul_(block.slope)
                if ctx.causal:
                    dproducts.tril_(rows.start)
                dq_blocks.append(torch.bmm(dproducts, block.k))
                by_keys = (dproducts.mT, block.q), (block.weights.mT, block_gradient)
                if sums is None:  # the last queries, which attend to all keys
                    sums = [torch.bmm(*factors) for factors in by_keys]
                    continue
                for total, factors in zip(sums, by_keys, strict=True):
                    add_product(total[:, : block.k.shape[1]], *factors)
            dq = dq_blocks[0] if len(dq_blocks) == 1 else torch.cat(dq_blocks[::-1], 1)
            gradients = (dq.mul_(pairs.scale), *(sums or ()))
        pulled = (x.view(*v.shape[:2], *x.shape[1:]).to(v.dtype) for x in gradients)
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
    """Return sum_j w(q_i · k_j) v_j / sum_j w(q_i · k_j) over real keys; if causal, over j <= i.

    w is `maps.pairs`. Keys and values at padding (False in `keep`) must be finite.
    """
    o: Tensor = _PairProduct.apply(q, k, v, keep, maps, causal)  # type: ignore[no-untyped-call]
    return o
