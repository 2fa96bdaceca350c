"""Modules whose parameters stay in float32 or float64 when a model moves to half precision."""

from collections.abc import Callable
from typing import Self

from torch import Tensor

from lra.models.mixer import Roles
from lra.models.ops.numerics import sum_dtype


class Float32Parameters(Roles):
    """A module whose parameters stay in float32 or float64.

    A phase is the product of a frequency and a distance: with 8 bits of the frequency, it would be
    wrong by many radians.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Apply `fn` to all parameters, as `nn.Module` does, but undo a move to half precision."""

        def move_unrounded(x: Tensor) -> Tensor:
            moved = fn(x)
            dtype = sum_dtype(moved)
            # From `x`, because `moved` has lost digits.
            return moved if moved.dtype == dtype else x.to(moved.device, dtype)

        super()._apply(move_unrounded, recurse)  # type: ignore[no-untyped-call]
        return self
