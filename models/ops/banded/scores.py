"""What is added to the scores of a block: its band, padding, ALiBi, and keys beyond the band.

Keys that every query sees besides its band (global tokens) are further columns of the block's
scores, under the same softmax. ALiBi costs nothing: the band of zeros that hides the corners holds
distances instead, multiplied by each head's slope.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lra.models.ops.banded.layout import Fold
from lra.models.ops.numerics import NEVER, sum_dtype


class GlobalKeys(NamedTuple):
    """Keys that every query attends to, outside of its window."""

    keys: Float[Tensor, "b h g k"]
    values: Float[Tensor, "b h g v"]
    positions: Int[Tensor, "b g"]
    """Counted from the first query. Matters for distances, and causal queries see no later ones."""
    keep: Bool[Tensor, "b g"] | None = None

    def select_heads(self, heads: slice) -> "GlobalKeys":
        """Return the keys of the heads in the slice `heads`."""
        return self._replace(keys=self.keys[:, heads], values=self.values[:, heads])

    def sight(self, length: int, *, causal: bool) -> Bool[Tensor, "b #l g"] | None:
        """Return True where one of `length` queries may attend to a global key; None if all may."""
        visible = None if self.keep is None else self.keep[:, None]
        if causal:
            queries = torch.arange(length, device=self.positions.device)
            earlier = self.positions[:, None] <= queries[:, None]
            visible = earlier if visible is None else earlier & visible
        return visible


class Scores(NamedTuple):
    """The masks and biases of the scores, made for some blocks at a time."""

    fold: Fold
    heads: int
    band: Float[Tensor, "c w"]
    gaps: Float[Tensor, "m 1 w"]
    slopes: Float[Tensor, "m 1 1"] | None
    positions: Int[Tensor, "b g"] | None
    """Of the keys beyond the band."""
    real: Bool[Tensor, "b g"] | None
    """False for keys beyond the band that are padding."""

    @classmethod
    def from_parts(
        cls,
        fold: Fold,
        like: Float[Tensor, "b h l k"],
        keep: Bool[Tensor, "b s"] | None,
        slopes: Float[Tensor, " h"] | None,
        beyond: GlobalKeys | None,
    ) -> "Scores":
        """Return the masks and biases for queries shaped as `like`, in its precision for sums.

        Args:
            fold: How rows of queries and keys become blocks.
            like: The queries.
            keep: False for keys that are padding; None: all keys are real.
            slopes: ALiBi's factor of each head, by which distances lower scores; None: no ALiBi.
            beyond: Keys outside the band that every query reads; None: there are none.
        """
        heads, plain = like.shape[1], like.new_empty(0, dtype=sum_dtype(like))
        if slopes is not None:
            row = fold.row(slice(0, fold.blocks), like.device)
            slopes = slopes.to(plain.dtype)[row // fold.dilation % heads, None, None]
        band = fold.band(plain, sloped=slopes is not None)
        positions, real = (None, None) if beyond is None else (beyond.positions, beyond.keep)
        return cls(fold, heads, band, fold.gaps(keep, plain, heads), slopes, positions, real)

    @property
    def width(self) -> int:
        """Number of scores of one query."""
        return self.fold.reach + (0 if self.positions is None else self.positions.shape[1])

    def begin(self, part: slice) -> Float[Tensor, "m c w"]:
        """Return new scores of the blocks in `part` that hold only masks and biases so far."""
        scores = self.band.new_empty(part.stop - part.start, self.fold.block, self.width)
        inside, bias = scores[..., : self.fold.reach], self.band
        if self.slopes is None:
            torch.add(bias, self.gaps[part], out=inside)
        else:  # the band has minus the distances
            torch.addcmul(self.gaps[part], self.slopes[part], bias, out=inside)
        if self.positions is not None:
            self._fill_global_scores(scores[..., self.fold.reach :], part, self.positions)
        return scores

    def _fill_global_scores(
        self, scores: Float[Tensor, "m c g"], part: slice, positions: Int[Tensor, "b g"]
    ) -> None:
        """Fill the scores of the g global keys with ALiBi's bias, and NEVER for hidden keys."""
        scores.zero_()
        example = self.row(part) // self.heads
        key = positions[example][:, None]
        query = self.fold.query_positions(part, key.device)[..., None]
        if self.slopes is not None:
            scores -= self.slopes[part] * (query - key).abs()
        if self.fold.causal:
            scores.masked_fill_(key > query, NEVER)
        if self.real is not None:
            scores.masked_fill_(~self.real[example][:, None], NEVER)

    def row(self, part: slice) -> Int[Tensor, " m"]:
        """Return the example and head, as one number, to which each block of `part` belongs."""
        return self.fold.row(part, self.band.device) // self.fold.dilation
