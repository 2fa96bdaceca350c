"""Helpers of all operations: dtypes of sums, masks, reciprocals, products in place, slices."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

NEVER = -1e30
"""Score of hidden keys: their weight is exactly 0, and rows with hidden keys only are not NaN."""
LOG2_E = 1.4426950408889634
"""log2(e): exp(x) = exp2(LOG2_E x), and exp2 is faster than exp on a CPU."""


_AS_IT_IS = nullcontext()


def sum_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of sums over the length: float32, or float64 where the input is."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def full_precision(x: Tensor) -> AbstractContextManager[Any]:
    """Return a context that switches autocast off for operations on the device of `x`."""
    kind = x.device.type
    # torch.amp.is_autocast_available cannot be traced by torch.compile before PyTorch 2.13.
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return _AS_IT_IS
    return torch.autocast(kind, enabled=False)


def norm_channels(x: Float[Tensor, "*l c"], norm: nn.Module) -> Float[Tensor, "*l c"]:
    """Apply `norm` to `x` in the precision of its weights, also under autocast."""
    return cast(Tensor, norm(x.to(cast(Tensor, norm.weight).dtype)))


def finite(x: Tensor) -> Tensor:
    """Replace -inf by 0, so that differences to the result are finite."""
    return x.masked_fill(x == -torch.inf, 0)


def without_padding(
    x: Float[Tensor, "b h s k"], keep: Bool[Tensor, "b s"] | None
) -> Float[Tensor, "b h s k"]:
    """Return `x` with zeros at padding, because large numbers there could become infinite."""
    return x if keep is None else x.masked_fill(~keep[:, None, :, None], 0)


def add_product(
    target: Float[Tensor, "m i j"],
    a: Float[Tensor, "m i r"],
    b: Float[Tensor, "m r j"],
    scale: float = 1.0,
    *,
    overwrite: bool = False,
) -> None:
    """Add `scale * a b` to `target` in place; with `overwrite`, replace it.

    `baddbmm_` is not used, because torch's counter of operations overlooks it.
    """
    torch.baddbmm(target, a, b, beta=0 if overwrite else 1, alpha=scale, out=target)


def row_slices(length: int, rows: int) -> Iterator[slice]:
    """Cut 0 … length into consecutive slices of `rows`, the last one shorter."""
    return (slice(start, min(start + rows, length)) for start in range(0, length, rows))


def reciprocal(total: Float[Tensor, "*r"]) -> Float[Tensor, "*r"]:
    """Return 1 / total, and 0 where the total is 0."""
    # Totals below this bound count as 0, so that products of gradients with 1 / total stay finite.
    tiny = torch.finfo(total.dtype).tiny * 1e6
    return F.threshold(total, tiny, torch.inf).reciprocal()


def signed_reciprocal(total: Float[Tensor, "*r"]) -> Float[Tensor, "*r"]:
    """Return 1 / total for sums of weights of any sign, and 0 near 0."""
    tiny = torch.finfo(total.dtype).tiny * 1e6
    large = total.abs() > tiny
    # The inner `where` keeps 1 / 0, whose gradient would be NaN, out of the computation.
    return torch.where(large, torch.where(large, total, 1).reciprocal(), 0)
