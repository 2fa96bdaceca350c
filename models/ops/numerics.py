"""Numbers that must stay finite and precise: types of sums, reciprocals, cuts along the length."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


def sum_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of sums over the length: float32, or float64 where the input is."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def full_precision(x: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which autocast leaves the operations on `x` alone."""
    kind = x.device.type
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


def finite(x: Tensor) -> Tensor:
    """Return 0 in place of -inf, so that differences to it have a value."""
    return x.masked_fill(x == -torch.inf, 0)


def blocks(length: int, rows: int) -> Iterator[slice]:
    """Cut 0 … length into consecutive slices of `rows`, the last one shorter."""
    return (slice(start, min(start + rows, length)) for start in range(0, length, rows))


def reciprocal(total: Float[Tensor, "*r"]) -> Float[Tensor, "*r"]:
    """Return 1 / total, and 0 where there is nothing to divide by: such rows give 0."""
    # The bound leaves room below the largest number for the products that gradients form with it.
    tiny = torch.finfo(total.dtype).tiny * 1e6
    return torch.where(total > tiny, total.clamp_min(tiny).reciprocal(), 0)


def signed_reciprocal(total: Float[Tensor, "*r"]) -> Float[Tensor, "*r"]:
    """Return 1 / total for sums of weights that may be negative, and 0 next to 0."""
    tiny = torch.finfo(total.dtype).tiny * 1e6
    far = total.abs() > tiny
    return torch.where(far, torch.where(far, total, 1).reciprocal(), 0)
