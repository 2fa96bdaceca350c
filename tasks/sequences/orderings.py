"""A sequence in another order, generated: reversed, or sorted.

    reversal   c a b  ->  b a c        position i of the answer is position n - 1 - i of the source
    sorting    c a b  ->  a b c        symbols by their number; a symbol may occur several times

A target depends on its source alone. Reversal needs one token of the source for each token of the
target; sorting needs counts. Both are common first checks of sequence-to-sequence models
(Grefenstette et al. 2015, arXiv:1506.02516, use reversal; Vinyals et al. 2015, arXiv:1511.06391,
sort real numbers).
"""

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum, auto
from functools import cached_property
from typing import ClassVar

import numpy as np
from jaxtyping import Int, UInt64

from lra.conf.choices import by_name
from lra.tasks.diagnostics.base import NOT_ASKED, DiagnosticTask, Loss, Rows, below
from lra.tasks.task import Batch, Kind, TaskSpec

BOUNDARY = 0
"""Token that begins a target, and ends it."""


class Target(StrEnum):
    """What the target is: the source reversed, or sorted."""

    reversed = auto()
    sorted = auto()


@by_name
@dataclass(kw_only=True, eq=False)
class Ordering(DiagnosticTask):
    """Write the source in another order. The length attributes of an instance are those of rows."""

    name: ClassVar[str] = "ordering"

    target: Target = Target.reversed
    """Order of the target: reversed or sorted."""
    length: int = 32
    """Number of tokens of a source in training and validation."""
    test_length: int | None = None
    """Number of tokens of a source in the test split; null: the same."""
    symbols: int = 16
    """Number of different tokens in sources."""
    min_length: int | None = field(init=False, default=None)
    test_lengths: list[int] | None = field(init=False, default=None)
    loss: Loss = field(init=False, default=Loss.answers)

    def __post_init__(self) -> None:
        """Check the options, and convert lengths of sources to lengths of rows."""
        for option, value in (("length", self.length), ("test_length", self.test_length)):
            if value is not None and value < 1:
                raise ValueError(
                    f"task.{option} must be at least 1, a source of 1 token: got {value}"
                )
        self.length = row_length(self.length)
        self.test_length = None if self.test_length is None else row_length(self.test_length)
        self.generated_as(vocabulary=self.symbols + 1, difficulty=f"{self.symbols} symbols")

    def answered(self, source: Int[np.ndarray, "n s"]) -> Int[np.ndarray, "n s"]:
        """Return the target of each source: reversed or sorted."""
        if self.target is Target.reversed:
            return source[:, ::-1]
        ordered: Int[np.ndarray, "n s"] = np.sort(source, axis=1)
        return ordered

    @cached_property
    def spec(self) -> TaskSpec:
        """The facts about this task."""
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
        """Return the number of random words for a row: one for each token of the source."""
        return source_length(length)

    def drawn(self, words: UInt64[np.ndarray, "n w"], length: int) -> Rows:
        """Return the rows that these random words decide."""
        source = 1 + below(words, self.symbols)
        target, edge = self.answered(source), np.full((len(words), 1), BOUNDARY)
        tokens = np.concatenate((source, edge, target), axis=1)
        answers = np.concatenate((np.full_like(source, NOT_ASKED), target, edge), axis=1)
        assert tokens.shape[1] == length
        return Rows(tokens, answers)

    def different_rows(self, length: int) -> float:
        """Return the binary logarithm of the number of different sources."""
        return source_length(length) * math.log2(self.symbols)

    def token_text(self, token: int) -> str:
        """Return the number of a symbol, or `_` for the token that begins and ends a target."""
        return "_" if token == BOUNDARY else str(token)

    def visible_batch(self, batch: Batch, seed: int) -> Batch:
        """Return the batch with the length of its sources as `prefix`."""
        visible = super().visible_batch(batch, seed)
        source = source_length(visible.tokens.shape[-1])
        return visible._replace(prefix=visible.index.new_full((len(visible.index),), source))

    def stretched(self, factor: float) -> dict[str, object]:
        """Return the options that make test sources `factor` times as long as training ones."""
        trained = source_length(self.length)
        length = max(1, round(factor * trained))
        if row_length(length) == self.tested_length:
            return {}
        # Only the test split is needed, unless it has the length of train.
        smallest = {} if length == trained else {"train_examples": 1, "validation_examples": 1}
        return {"test_length": length, **smallest}


def row_length(source: int) -> int:
    """Return the number of tokens of a row with a source of `source` tokens."""
    return 2 * source + 1


def source_length(row: int) -> int:
    """Return the number of tokens of the source in a row of `row` tokens."""
    return (row - 1) // 2
