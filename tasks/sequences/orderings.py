"""A sequence in another order, generated: reversed, or sorted.

    reversal   c a b  ->  b a c        position i of the answer is position n - 1 - i of the source
    sorting    c a b  ->  a b c        symbols by their number; a symbol may come several times

Nothing about a target can be told without its source. Reversal asks to look at one place, which
depends on the answer's own; sorting to count. Both are usual first checks of a model of sequence to
sequence (Grefenstette et al. 2015, arXiv:1506.02516, has reversal; Vinyals et al. 2015,
arXiv:1511.06391, has sorting, of real numbers).
"""

import math
from dataclasses import dataclass, replace
from enum import StrEnum, auto
from functools import cached_property
from typing import ClassVar

import numpy as np
from jaxtyping import Int, UInt64

from lra.conf.choices import by_name
from lra.tasks.diagnostics.base import NOT_ASKED, DiagnosticTask, Rows, below
from lra.tasks.task import Batch, Kind, TaskSpec

BOUNDARY = 0
"""Begins an answer, and ends it."""


class Target(StrEnum):
    """What a source becomes."""

    reversed = auto()
    sorted = auto()


@by_name
@dataclass(kw_only=True, eq=False)
class Ordering(DiagnosticTask):
    """The task; see the module's text. Its attributes of length are those of rows."""

    name: ClassVar[str] = "ordering"

    target: Target = Target.reversed
    """What a source becomes: reversed, or sorted."""
    length: int = 32
    """Tokens of a source of training or validation."""
    test_length: int | None = None
    """Tokens of a test source; null: the same."""
    symbols: int = 16
    """Different tokens of a source."""

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        for option, value in (("length", self.length), ("test_length", self.test_length)):
            if value is not None and value < 1:
                raise ValueError(f"task.{option}={value}: wanted a source of at least 1 token")
        self.length = row_length(self.length)
        self.test_length = None if self.test_length is None else row_length(self.test_length)
        self.generated_as(vocabulary=self.symbols + 1, difficulty=f"{self.symbols} symbols")

    def answered(self, source: Int[np.ndarray, "n s"]) -> Int[np.ndarray, "n s"]:
        """Return the target of each source."""
        if self.target is Target.reversed:
            return source[:, ::-1]
        ordered: Int[np.ndarray, "n s"] = np.sort(source, axis=1)
        return ordered

    @cached_property
    def spec(self) -> TaskSpec:
        """The facts."""
        longest = source_length(self.max_length)
        trained = source_length(self.length)
        lengths = f", {trained} tokens" + ("" if trained == longest else " in training")
        spec = super().spec
        return replace(
            spec,
            name="reversal" if self.target is Target.reversed else "sorting",
            kind=Kind.sequence_to_sequence,
            source=f"generated, {self.difficulty}{lengths}",
            masks=frozenset({"prefix"}),
            source_length=longest,
            target_length=longest + 1,
            sources_vary=self.length != self.tested_length,
        )

    def words(self, length: int) -> int:
        """Return how many random words a row is made of: one for each token of the source."""
        return source_length(length)

    def drawn(self, words: UInt64[np.ndarray, "n w"], length: int) -> Rows:
        """Return the rows that some random words make."""
        source = 1 + below(words, self.symbols)
        target, edge = self.answered(source), np.full((len(words), 1), BOUNDARY)
        tokens = np.concatenate((source, edge, target), axis=1)
        answers = np.concatenate((np.full_like(source, NOT_ASKED), target, edge), axis=1)
        assert tokens.shape[1] == length
        return Rows(tokens, answers)

    def different_rows(self, length: int) -> float:
        """Return the binary logarithm of the number of sources."""
        return source_length(length) * math.log2(self.symbols)

    def token_text(self, token: int) -> str:
        """Return a symbol's number, or `_` where an answer begins and ends."""
        return "_" if token == BOUNDARY else str(token)

    def visible_batch(self, batch: Batch, seed: int) -> Batch:
        """Return a batch with the length of its sources."""
        visible = super().visible_batch(batch, seed)
        source = source_length(visible.tokens.shape[-1])
        return visible._replace(prefix=visible.index.new_full((len(visible.index),), source))

    def stretched(self, factor: float) -> dict[str, object]:
        """Return the options that make test sources `factor` times as long as training's."""
        trained = source_length(self.length)
        length = max(1, round(factor * trained))
        if row_length(length) == self.tested_length:
            return {}
        few = {} if length == trained else {"train_examples": 1, "validation_examples": 1}
        return {"test_length": length, **few}


def row_length(source: int) -> int:
    """Return the tokens of a row whose source and target have so many each."""
    return 2 * source + 1


def source_length(row: int) -> int:
    """Return the tokens of the source of a row of so many."""
    return (row - 1) // 2
