"""Parameters of a dynamics, which no move to half precision rounds."""

from collections.abc import Callable
from typing import Self

from torch import Tensor

from lra.models.mixer import Roles
from lra.models.ops.numerics import sum_dtype


class Float32Parameters(Roles):
    """Keeps its parameters in float32 or float64.

    A phase is the product of a frequency and a distance: it turns by many radians where the first
    has 8 bits.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def unrounded(x: Tensor) -> Tensor:
            moved = fn(x)
            kept = sum_dtype(moved)
            return moved if moved.dtype == kept else x.to(moved.device, kept)

        super()._apply(unrounded, recurse)  # type: ignore[no-untyped-call]
        return self
