"""Bidirectional attention whose weights are inner products of features.

With features phi, o_i = phi(q_i) S / phi(q_i) z, where S = sum_j phi(k_j) v_j^T and
z = sum_j phi(k_j): the n x n matrix is never formed. Backward takes S and z as one matrix [S z],
the sums of phi(k_j) [v_j 1]. Axis letters besides the project's: m features, w = v + 1, r rows of
a block.

Features are made block by block along the length, used and forgotten; backward makes them again.
So nothing of the size (length x features) is ever stored: what autograd keeps is q, k, v, the
output and one number per row, and a block stays in the processor's cache while it is worked on.
A short sequence is one block, whose results are neither put together nor added up.

A feature map may return its features divided by a positive factor per row, together with the
logarithm of that factor. On the query side the factor cancels between numerator and denominator.
On the key side it weighs the row, and only the ratios of these weights matter, so exponentials
never overflow. What is left to underflow is a sum of weights below 1e-25 (float32) of the product
of the largest features of query and key: `exponent_sums` then computes all rows without loss, for
features that are exponentials; a row of others counts as having found nothing, and is 0.
"""

from functools import partial
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from lra.models.ops.linear.exponent_sums import faint, mean_of_all
from lra.models.ops.linear.features import FeatureMaps, rows_at_once
from lra.models.ops.numerics import (
    add_product,
    finite,
    full_precision,
    row_slices,
    sum_dtype,
    without_padding,
)


def augment(
    v: Float[Tensor, "*r v"], column: Tensor | float, dtype: torch.dtype | None = None
) -> Float[Tensor, "*r w"]:
    """Append a column of `column` to `v`, so that one product gives numerator and denominator."""
    wide = v.new_empty((*v.shape[:-1], v.shape[-1] + 1), dtype=dtype)
    wide[..., :-1] = v
    wide[..., -1] = column
    return wide


def _mask_logarithms(
    log: Float[Tensor, "b h r"], keep: Bool[Tensor, "b r"] | None
) -> Float[Tensor, "b h r"]:
    """Return the logarithms `log` of r keys, with -inf for padding."""
    return log if keep is None else log.masked_fill(~keep[:, None], -torch.inf)


# Each block is computed in one call, so that its tensors are freed before the next block.


class _Keys(NamedTuple):
    """Keys and values of some rows of the sequence."""

    k: Float[Tensor, "b h r k"]
    v: Float[Tensor, "b h r v"]
    keep: Bool[Tensor, "b r"] | None

    def select(self, rows: slice) -> "_Keys":
        """Return the rows in the slice `rows`."""
        if rows == slice(0, self.k.shape[2]):
            return self
        keep = None if self.keep is None else self.keep[:, rows]
        return _Keys(self.k[:, :, rows], self.v[:, :, rows], keep)

    def weights(
        self, log: Float[Tensor, "b h r"] | None, top: Float[Tensor, "b h"] | None
    ) -> Float[Tensor, "b #h r 1"] | None:
        """Return the weight exp(log - top) of each of r keys, 0 for padding; None: all are 1."""
        if log is not None and top is not None:
            return torch.exp(_mask_logarithms(log, self.keep) - finite(top)[..., None])[..., None]
        return None if self.keep is None else self.keep[:, None, :, None].to(sum_dtype(self.v))


class Sums(NamedTuple):
    """Sums over keys, stored separately because joining them makes products a sixth slower."""

    values: Float[Tensor, "b h m v"]
    """Of phi(k_j) v_j^T."""
    weights: Float[Tensor, "b h m"]
    """Of phi(k_j)."""

    def as_matrix(self) -> Float[Tensor, "b h m w"]:
        """Return both sums side by side as one matrix."""
        return torch.cat((self.values, self.weights[..., None]), dim=-1)


def _add_keys(
    keys: _Keys, sums: Sums | None, top: Float[Tensor, "b h"] | None, maps: FeatureMaps
) -> tuple[Sums, Float[Tensor, "b h"] | None]:
    """Add features of some keys to `sums` in place; return sums and the largest logarithm.

    `top` is the largest logarithm before, to which the sums are relative; None: there is none.
    """
    dtype = sum_dtype(keys.v)
    phi, log = maps.key(keys.k.to(dtype))
    if log is not None:
        largest = _mask_logarithms(log, keys.keep).amax(-1)
        before, top = top, largest if top is None else torch.maximum(top, largest)
        if sums is not None and before is not None:
            shrink = torch.exp(before - finite(top))[..., None]
            sums.values.mul_(shrink[..., None])
            sums.weights.mul_(shrink)
    weight = keys.weights(log, top)
    if weight is not None:
        # With padding always contiguous, so that the same sums have the same bits.
        phi = phi.mul_(weight) if keys.keep is None else phi.contiguous().mul_(weight)
    v, weights = keys.v.to(dtype), phi.sum(-2)
    if sums is None:
        return Sums(phi.mT @ v, weights), top
    add_product(sums.values.flatten(0, 1), phi.flatten(0, 1).mT, v.flatten(0, 1))
    sums.weights.add_(weights)
    return sums, top


def _read_block(
    q: Float[Tensor, "b h r k"],
    sums: Sums,
    maps: FeatureMaps,
    o: Float[Tensor, "b h r v"] | None = None,
) -> tuple[Float[Tensor, "b h r v"], Float[Tensor, "b h r"] | None]:
    """Return phi(q) S / phi(q) z for some queries, in `o` if given, and 1 / phi(q) z or None."""
    phi, _ = maps.query(q.to(sums.values.dtype))
    numerator = phi @ sums.values
    inverse = None
    if maps.normalise:
        inverse = maps.reciprocal((sums.weights[..., None, :] @ phi.mT)[..., 0, :])
        numerator.mul_(inverse[..., None])
    return numerator if o is None else o.copy_(numerator), inverse


def _pull_query(
    q: Float[Tensor, "b h r k"],
    g: Float[Tensor, "b h r w"],
    sums: Float[Tensor, "b h m w"],
    maps: FeatureMaps,
) -> tuple[Float[Tensor, "b h r k"], Float[Tensor, "b h m w"]]:
    """Return the gradients of a block of queries and of the sums, from that of the outputs."""
    x = q.to(g.dtype)
    phi, _ = maps.query(x)
    dsums = phi.mT @ g
    return maps.query.pull(g @ sums.mT, phi, x), dsums


def _pull_keys(
    keys: _Keys,
    top: Float[Tensor, "b h"] | None,
    dsums: Float[Tensor, "b h m w"],
    maps: FeatureMaps,
) -> tuple[Float[Tensor, "b h r k"], Float[Tensor, "b h r v"]]:
    """Return the gradients of a block of keys and values, from that of the sums."""
    x = keys.k.to(dsums.dtype)
    phi, log = maps.key(x)
    values, weight = augment(keys.v.to(dsums.dtype), 1.0), keys.weights(log, top)
    dv = phi @ dsums[..., :-1]
    if weight is not None:
        values *= weight
        dv *= weight
    return maps.key.pull(values @ dsums.mT, phi, x), dv


def key_sums(
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    keep: Bool[Tensor, "b s"] | None,
    maps: FeatureMaps,
) -> tuple[Sums, Float[Tensor, "b h"] | None]:
    """Return the sums over the keys, and the logarithm that they are relative to, or None."""
    keys, at_once = _Keys(k, v, keep), rows_at_once(k, maps.width)
    sums = top = None
    if not 0 < k.shape[2] <= at_once:  # several blocks are added to zeros; one needs none
        by_feature = (*v.shape[:2], maps.width)
        zeros = partial(v.new_zeros, dtype=sum_dtype(v))
        sums = Sums(zeros((*by_feature, v.shape[-1])), zeros(by_feature))
    with full_precision(k):
        for rows in row_slices(k.shape[2], at_once):
            sums, top = _add_keys(keys.select(rows), sums, top, maps.at_rows(rows))
    return cast(Sums, sums), top


def key_gradients(
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    *,
    keep: Bool[Tensor, "b s"] | None,
    top: Float[Tensor, "b h"] | None,
    dsums: Float[Tensor, "b h m w"],
    maps: FeatureMaps,
) -> tuple[Float[Tensor, "b h s k"], Float[Tensor, "b h s v"]]:
    """Return the gradients of keys and values, given the gradient of their sums."""
    keys, at_once = _Keys(k, v, keep), rows_at_once(k, maps.width)
    with full_precision(k):
        if k.shape[2] <= at_once:  # one block, which is not copied into buffers
            parts = _pull_keys(keys, top, dsums, maps.at_rows(slice(0, k.shape[2])))
            return parts[0].to(k.dtype), parts[1].to(v.dtype)
        dk, dv = torch.empty_like(k), torch.empty_like(v)
        for rows in row_slices(k.shape[2], at_once):
            dk[:, :, rows], dv[:, :, rows] = _pull_keys(
                keys.select(rows), top, dsums, maps.at_rows(rows)
            )
    return dk, dv


def read_feature_sums(
    q: Float[Tensor, "b h l k"],
    sums: Sums,
    maps: FeatureMaps,
    dtype: torch.dtype,
    o: Float[Tensor, "b h l v"] | None = None,
) -> tuple[Float[Tensor, "b h l v"], Float[Tensor, "b h l"]]:
    """Return the outputs of all queries, in `o` if given, and 1 / sums of weights, or ones."""
    ones = partial(sums.values.new_ones, q.shape[:3])
    at_once = rows_at_once(q, maps.width)
    with full_precision(q):
        if q.shape[2] <= at_once:  # one block
            output, inverse = _read_block(q, sums, maps.at_rows(slice(0, q.shape[2])), o)
            return output.to(dtype), ones() if inverse is None else inverse
        if o is None:
            o = q.new_empty((*q.shape[:3], sums.values.shape[-1]), dtype=dtype)
        inverse = ones()
        for rows in row_slices(q.shape[2], at_once):
            _, factor = _read_block(q[:, :, rows], sums, maps.at_rows(rows), o[:, :, rows])
            if factor is not None:
                inverse[:, :, rows] = factor
    return o, inverse


def query_gradients(
    q: Float[Tensor, "b h l k"],
    sums: Float[Tensor, "b h m w"],
    *,
    o: Float[Tensor, "b h l v"],
    inverse: Float[Tensor, "b h l"],
    gradient: Float[Tensor, "b h l v"],
    maps: FeatureMaps,
) -> tuple[Float[Tensor, "b h l k"], Float[Tensor, "b h m w"]]:
    """Return the gradients of queries and of the sums; `gradient` is that of the outputs `o`."""
    at_once = rows_at_once(q, maps.width)
    with full_precision(q):
        if q.shape[2] <= at_once:  # one block
            g = output_gradient(gradient, o, inverse, maps)
            pulled, dsums = _pull_query(q, g, sums, maps.at_rows(slice(0, q.shape[2])))
            return pulled.to(q.dtype), dsums
        dq, dsums = torch.empty_like(q), torch.zeros_like(sums)
        for rows in row_slices(q.shape[2], at_once):
            g = output_gradient(gradient[:, :, rows], o[:, :, rows], inverse[:, :, rows], maps)
            dq[:, :, rows], part = _pull_query(q[:, :, rows], g, sums, maps.at_rows(rows))
            dsums += part
    return dq, dsums


def _mix_values(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    keep: Bool[Tensor, "b s"] | None,
    maps: FeatureMaps,
) -> tuple[Float[Tensor, "b h l v"], Float[Tensor, "b h l"], Sums, Float[Tensor, "b h"] | None]:
    """Return the outputs of all queries, and the tensors that backward needs."""
    sums, top = key_sums(k, v, keep, maps)
    # The result takes the memory layout of v: joining the heads afterwards copies nothing.
    target = None if v.is_contiguous() or q.shape[2] != v.shape[2] else torch.empty_like(v)
    return *read_feature_sums(q, sums, maps, v.dtype, target), sums, top


class _FeatureProduct(torch.autograd.Function):
    """The product over all keys, with features recomputed in backward."""

    @staticmethod
    def forward(  # noqa: PLR0917 (autograd functions take positions only)
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, maps: FeatureMaps
    ) -> tuple[Tensor, Tensor]:
        """Return the outputs and 1 / sums of weights, and save the sums over keys."""
        o, inverse, sums, top = _mix_values(q, k, v, keep, maps)
        ctx.maps = maps
        ctx.save_for_backward(q, k, v, keep, o, inverse, *sums, top)
        ctx.mark_non_differentiable(inverse)
        return o, inverse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients of q, k and v, through the saved sums over keys."""
        q, k, v, keep, o, inverse, *sum_parts, top = ctx.saved_tensors
        sums = Sums(*sum_parts).as_matrix()
        dq, dsums = query_gradients(q, sums, o=o, inverse=inverse, gradient=gradient, maps=ctx.maps)
        dk, dv = key_gradients(k, v, keep=keep, top=top, dsums=dsums, maps=ctx.maps)
        return dq, dk, dv, None, None


def output_gradient(
    gradient: Float[Tensor, "b h r v"],
    o: Float[Tensor, "b h r v"],
    inverse: Float[Tensor, "b h r"],
    maps: FeatureMaps,
) -> Float[Tensor, "b h r w"]:
    """Return the gradient of [numerator denominator], for o = numerator / denominator."""
    g = gradient.to(inverse.dtype) * inverse[..., None]
    return augment(g, -(g * o).sum(-1) if maps.normalise else 0.0)


def feature_product(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    maps: FeatureMaps,
    keep: Bool[Tensor, "b s"] | None = None,
    *,
    blank: bool = False,
) -> Float[Tensor, "b h l v"]:
    """Return sums of values with weights phi(q_i) · phi(k_j), divided by the sum of the weights.

    The division depends on `maps.normalise`. Sums are float32, or float64 for float64 inputs; the
    result has the dtype of v. A query without a real key returns 0.

    Args:
        q: Queries.
        k: Keys.
        v: Values.
        maps: The feature maps.
        keep: False for padding; None: all keys are real.
        blank: Whether keys and values at padding are known to be finite, because they were computed
            from zeros. If so, only their features are masked.
    """
    if not blank:
        k, v = without_padding(k, keep), without_padding(v, keep)
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        o, inverse = _FeatureProduct.apply(q, k, v, keep, maps)  # type: ignore[no-untyped-call]
    else:
        o, inverse, *_ = _mix_values(q, k, v, keep, maps)
    if maps.exponentials is None:
        return cast(Tensor, o)
    has_key = None if keep is None else keep.any(1, keepdim=True)
    return (
        mean_of_all(q, k, v, keep, maps.exponentials)
        if faint(inverse, has_key)
        else cast(Tensor, o)
    )
