"""Retention of short sequences by weights of all pairs, without a state.

    o_i = scale sum_j gamma^|i - j| (q_i · k_j) v_j     over all j, or over j <= i when causal

Cost       l (k + v) operations a token and head, l tokens; `is_cheaper` weighs them and those of
           `decayed_product`, once for each direction. Autograd keeps q, k, v, the weights, which
           are few, and their decays.
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from lra.models.ops.gated.blockwise import FEW
from lra.models.ops.gated.pairs import constant_decays
from lra.models.ops.numerics import full_precision, sum_dtype


def is_cheaper(
    q: Float[Tensor, "b h l k"], v: Float[Tensor, "b h l v"], chunk: int, *, causal: bool
) -> bool:
    """Return whether weights of all pairs are faster than chunks with states.

    The decision compares numbers of operations. Operations with states count twice, because they
    are many small calls: at twice a chunk's tokens, pairs take up to a third more operations but a
    tenth less time.
    """
    length, key, value = *q.shape[2:], v.shape[3]
    by_states = min(chunk, length) * (key + value) + 4 * key * value
    cheaper = length * (key + value) <= (1 if causal else 2) * by_states
    return cheaper and math.prod(q.shape[:3]) * length <= FEW


def _decayed_products(
    x: Float[Tensor, "bh l k"], y: Float[Tensor, "bh l k"], table: Float[Tensor, "h l l"]
) -> Float[Tensor, "bh l l"]:
    """Return x y^T for each row, multiplied by the decays in `table` of the row's head."""
    products = torch.bmm(x, y.mT)
    products.view(-1, *table.shape).mul_(table)
    return products


class _PairedProduct(torch.autograd.Function):
    """`apply(q, k, v, g, scale, causal)`; g gets no gradient."""

    @staticmethod
    def forward(  # noqa: PLR0917 (autograd functions take positions only)
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, g: Tensor, scale: float, causal: bool
    ) -> Tensor:
        """Return scale gamma^|i - j| (q_i · k_j), for all pairs or j <= i, times v."""
        ctx.shape = q.shape[:3]
        inputs = [x.reshape(-1, *x.shape[2:]) for x in (q, k, v)]
        q, k, v = (x.to(sum_dtype(v)) for x in inputs)
        with full_precision(v):
            table = constant_decays(g, q.shape[1], scale=scale, causal=causal)
            weights = _decayed_products(q, k, table)
            o = torch.bmm(weights, v)
        ctx.save_for_backward(*inputs, weights, table)
        return o.view(*ctx.shape, -1).to(inputs[2].dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of q, k and v, from the saved weights and decays."""
        *inputs, weights, table = ctx.saved_tensors
        dtype = sum_dtype(do)
        q, k, v = (x.to(dtype) for x in inputs)
        do = do.to(dtype).reshape(v.shape)
        with full_precision(do):
            dv = torch.bmm(weights.mT, do)
            products = _decayed_products(do, v, table)
            dq, dk = torch.bmm(products, k), torch.bmm(products.mT, q)
        pulled = (
            dx.view(*ctx.shape, -1).to(x.dtype) for dx, x in zip((dq, dk, dv), inputs, strict=True)
        )
        return *pulled, None, None, None


def paired_product(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    g: Float[Tensor, " h"],
    *,
    scale: float,
    causal: bool,
) -> Float[Tensor, "b h l v"]:
    """Return o_i = scale sum_j gamma^|i - j| (q_i · k_j) v_j, in the dtype of `v`.

    `g` is the logarithm of gamma of each head, finite and without a gradient. If `causal`, the sum
    runs over j <= i only.
    """
    o: Tensor = _PairedProduct.apply(q, k, v, g, scale, causal)  # type: ignore[no-untyped-call]
    return o
