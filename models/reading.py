"""The order in which a layer reads the tokens of a row: real tokens first, padding after them.

So what a layer remembers of earlier tokens never depends on padding, wherever this stands.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

LAST = torch.iinfo(torch.int64).max
"""Document number of padding, larger than those of all documents."""


class Reading(NamedTuple):
    """The order in which a layer reads the tokens of each row."""

    order: Int[Tensor, "b l"] | None
    """Positions as they are read; None: all as they stand, or all `backwards`."""
    backwards: bool

    def reorder(self, x: Shaped[Tensor, "b l *d"]) -> Shaped[Tensor, "b l *d"]:
        """Return `x`, tokens or one number per token, in the order of reading."""
        if self.order is None:
            return x.flip(1) if self.backwards else x
        order = self.order if x.ndim == 2 else self.order[..., None].expand_as(x)
        return x.gather(1, order)

    def back(self, y: Float[Tensor, "b l h"]) -> Float[Tensor, "b l h"]:
        """Return outputs in the original order of tokens."""
        if self.order is None:
            return y.flip(1) if self.backwards else y
        places = self.order[..., None].expand_as(y)
        return torch.zeros_like(y).scatter(1, places, y)


def reading_order(
    keep: Bool[Tensor, "b l"] | None, *, backwards: bool, document: Int[Tensor, "b l"] | None = None
) -> Reading:
    """Return an order that reads real tokens first, forwards or backwards, and padding last.

    Padding is False in `keep`. With `document`, tokens of the same document are read together.
    """
    like = document if keep is None else keep
    if like is None:
        return Reading(None, backwards)
    position = torch.arange(like.shape[1], device=like.device)
    rank = (position.flip(0) if backwards else position).expand(like.shape)
    order = (rank if keep is None else rank + rank.shape[1] * ~keep).argsort(dim=1)  # padding last
    if document is not None:
        document = document if keep is None else document.masked_fill(~keep, LAST)
        order = order.gather(1, document.gather(1, order).argsort(dim=1, stable=True))
    return Reading(order, backwards)
