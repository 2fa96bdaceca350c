"""Sums of values, weighted by a Gaussian of the distance between query and key, tile by tile.

    o_i = sum_j exp(-|q_i - k_j|^2 / (2 sqrt(d))) v_j

No weight outlives its tile: backward makes them again, so that what autograd keeps is q, k and v.
The exponent is one product, [x, -|x|^2/2, 1] . [y, 1, -|y|^2/2] with x and y = q and k / d^(1/4);
padding has -1e30 in place of -|y|^2/2. Cost: 4 n s D operations forward, 14 n s D with backward.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import dropout

from lra.models.device_kind import device_kind
from lra.models.ops.numerics import NEVER, add_product, full_precision, sum_dtype

TILE_ELEMENTS = {"cpu": 1 << 20}
"""Weights worked on at once, by kind of device: 4 MB, which stay in a cache."""
TILE_ELEMENTS_ELSEWHERE = 1 << 26
KEYS = 512
"""Most keys of a tile."""


def tiles(q: Float[Tensor, "r l e"], k: Float[Tensor, "r s e"]) -> Iterator[tuple[slice, slice]]:
    """Yield slices of queries and of keys, tiles that together cover all pairs."""
    elements = TILE_ELEMENTS.get(device_kind(q.device), TILE_ELEMENTS_ELSEWHERE)
    columns = min(KEYS, k.shape[1])
    rows = max(32, elements // (q.shape[0] * columns))
    for first in range(0, q.shape[1], rows):
        for start in range(0, k.shape[1], columns):
            yield slice(first, first + rows), slice(start, start + columns)


class _Sides(NamedTuple):
    """Queries and keys with two more columns, and values, with heads folded into the batch."""

    q: Float[Tensor, "r l e"]
    k: Float[Tensor, "r s e"]
    v: Float[Tensor, "r s v"]

    def weights(self, rows: slice, columns: slice) -> Float[Tensor, "r i j"]:
        """Return the weights of the queries `rows` and the keys `columns`."""
        # Exponents above 0 can only come from rounding.
        return torch.bmm(self.q[:, rows], self.k[:, columns].mT).clamp_(max=0).exp_()


def _widen(x: Float[Tensor, "b h l k"], *, keys: bool) -> Float[Tensor, "r l e"]:
    """Return [x, -|x|^2/2, 1], or for keys [x, 1, -|x|^2/2], of x / d^(1/4)."""
    width = x.shape[-1]
    wide = x.new_empty(*x.shape[:3], width + 2, dtype=sum_dtype(x))
    torch.mul(x, width**-0.25, out=wide[..., :width])
    norm_column, ones_column = (width + 1, width) if keys else (width, width + 1)
    wide[..., norm_column] = wide[..., :width].square().sum(-1).mul_(-0.5)
    wide[..., ones_column] = 1
    return wide.flatten(0, 1)


def _widen_all(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> _Sides:
    """Return widened queries and keys, and values, by row; padding gets weights of 0."""
    keys = _widen(k, keys=True)
    if keep is not None:
        keys.view(*k.shape[:3], -1)[..., -1].masked_fill_(~keep[:, None], NEVER)
    return _Sides(_widen(q, keys=False), keys, v.to(keys.dtype).flatten(0, 1))


class _GaussianProduct(torch.autograd.Function):
    """`apply(q, k, v, keep)`."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
        """Return o_i = sum_j exp(-|q_i - k_j|^2 / (2 sqrt(k))) v_j, tile by tile."""
        ctx.save_for_backward(q, k, v, keep)
        with full_precision(q):
            sides = _widen_all(q, k, v, keep)
            o = sides.v.new_zeros(*sides.q.shape[:2], v.shape[-1])
            for rows, columns in tiles(sides.q, sides.k):
                add_product(o[:, rows], sides.weights(rows, columns), sides.v[:, columns])
        return o.view(*q.shape[:3], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of q, k and v; the weights are computed again."""
        q, k, v, keep = ctx.saved_tensors
        with full_precision(gradient):
            sides = _widen_all(q, k, v, keep)
            gradient_rows = gradient.to(sides.v.dtype).flatten(0, 1)
            dq, dk, dv = (torch.zeros_like(x) for x in sides)
            for rows, columns in tiles(sides.q, sides.k):
                weights, g = sides.weights(rows, columns), gradient_rows[:, rows]
                add_product(dv[:, columns], weights.mT, g)
                dexponent = torch.bmm(g, sides.v[:, columns].mT).mul_(weights)
                add_product(dq[:, rows], dexponent, sides.k[:, columns])
                add_product(dk[:, columns], dexponent.mT, sides.q[:, rows])
            by_q = _narrow_gradient(dq, sides.q, -2).view_as(q).to(q.dtype)
            by_k = _narrow_gradient(dk, sides.k, -1).view_as(k).to(k.dtype)
        return by_q, by_k, dv.view_as(v).to(v.dtype), None


def _narrow_gradient(
    gradient: Float[Tensor, "r l e"], wide: Float[Tensor, "r l e"], norm: int
) -> Float[Tensor, "r l k"]:
    """Return the gradient of x in `_widen`; `norm` is the index of the column -|x|^2/2."""
    width = wide.shape[-1] - 2
    narrow = gradient[..., :width]
    return narrow.sub_(gradient[..., norm, None] * wide[..., :width]).mul_(width**-0.25)


def gaussian_product(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    keep: Bool[Tensor, "b s"] | None = None,
) -> Float[Tensor, "b h l v"]:
    """Return o_i = sum_j exp(-|q_i - k_j|^2 / (2 sqrt(k))) v_j over real keys, at least float32."""
    o: Tensor = _GaussianProduct.apply(q, k, v, keep)  # type: ignore[no-untyped-call]
    return o


def dropped_product(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    keep: Bool[Tensor, "b s"] | None,
    rate: float,
) -> Float[Tensor, "b h l v"]:
    """Return the same as `gaussian_product` with dropout, where autograd saves all weights."""
    with full_precision(q):
        x, y = (part.to(sum_dtype(q)) * q.shape[-1] ** -0.25 for part in (q, k))
        of_x, of_y = (0.5 * part.square().sum(-1, keepdim=True) for part in (x, y))
        exponent = (x @ y.mT - of_x - of_y.mT).clamp(max=0)
        if keep is not None:
            exponent = exponent.masked_fill(~keep[:, None, None], NEVER)
        return dropout(exponent.exp(), rate) @ v.to(exponent.dtype)
