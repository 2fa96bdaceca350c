"""The order in which a recurrent layer reads a row: real tokens first, padding behind them.

So padding, wherever it stands, changes no state that a real token sees; from the last token to the
first, it is behind the first one.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class Reading(NamedTuple):
    """An order of the tokens of each row."""

    order: Int[Tensor, "b l"] | None
    """Positions as they are read; None: all as they stand, or all `backwards`."""
    backwards: bool

    def of(self, x: Float[Tensor, "b l d"]) -> Float[Tensor, "b l d"]:
        """Return the tokens as they are read."""
        if self.order is None:
            return x.flip(1) if self.backwards else x
        return x.gather(1, self.order[..., None].expand_as(x))

    def back(self, y: Float[Tensor, "b l h"]) -> Float[Tensor, "b l h"]:
        """Return what was made of the tokens, each where it stands."""
        if self.order is None:
            return y.flip(1) if self.backwards else y
        places = self.order[..., None].expand_as(y)
        return torch.zeros_like(y).scatter(1, places, y)


def reading(keep: Bool[Tensor, "b l"] | None, *, backwards: bool) -> Reading:
    """Return the order of real tokens, from the first or from the last, then of padding."""
    if keep is None:
        return Reading(None, backwards)
    position = torch.arange(keep.shape[1], device=keep.device)
    turn = position.flip(0) if backwards else position
    return Reading((turn + len(turn) * ~keep).argsort(dim=1), backwards)
