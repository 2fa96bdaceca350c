"""The base of generated tasks whose rows list a context, and then ask questions about it.

    begin  A B C  A B C  |  C .  B .      reads=2: the context A B C stands twice

A model that fails with one reading and succeeds with two did not know what to store before it read
the question (arXiv:2407.05483).
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from lra.tasks.data.batching import Draw
from lra.tasks.diagnostics.base import Rows
from lra.tasks.diagnostics.derived_length import DerivedLengthTask


@dataclass(kw_only=True, eq=False)
class ContextTask(DerivedLengthTask):
    """A base class of tasks with a first mark, a context, and then a border and questions.

    A subclass draws rows with one context, and sets `length` for `reads` of them.
    """

    later: ClassVar[frozenset[str]] = frozenset({"reads"})

    reads: int = 1
    """Number of times that the context stands before the questions."""

    @abstractmethod
    def border(self, tokens: Int[np.ndarray, "n l"]) -> Int[np.ndarray, " n"]:
        """Return the position of the first token behind the context of each row."""

    def _draw(self, split: str, lengths: list[int], draw: Draw, stream: int, rows: int) -> Rows:
        """Return rows whose lengths are drawn from `lengths`, from a stream of random words."""
        found = super()._draw(split, lengths, draw, stream, rows)
        return read_again(found, self.border(found.tokens), self.reads)


def read_again(rows: Rows, border: Int[np.ndarray, " n"], reads: int) -> Rows:
    """Return rows whose tokens 1 to `border` - 1 stand `reads` times; the longest row has room."""
    if reads == 1 or rows.sizes is None:
        return rows
    context, place = (border - 1)[:, None], np.arange(rows.tokens.shape[1])
    end = 1 + reads * context
    source = np.where(place < end, 1 + (place - 1) % context, place - end + border[:, None])
    source[:, 0] = 0
    tokens, answers = (np.take_along_axis(part, source, axis=1) for part in rows[:2])
    return Rows(tokens, answers, rows.sizes + (reads - 1) * context[:, 0])
