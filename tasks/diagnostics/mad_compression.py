"""Compression of MAD (Poli et al., arXiv:2403.17844): a whole row in one vector.

    3 1 7 7 2 … 5 ▪      random tokens, and the last id at the end
    3 1 7 7 2 … 5 ▪      the answers are all tokens, decoded from the last vector alone

A causal encoder reads the row. A decoder gets only its last vector and a position, and gives the
token at this position, so the vector must hold the whole row.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import UInt64

from lra.conf.choices import by_name
from lra.tasks.diagnostics.base import DiagnosticTask, Rows, below
from lra.tasks.task import Baseline, Kind


@by_name
@dataclass(kw_only=True, eq=False)
class MadCompression(DiagnosticTask):
    """Compression: reconstruct each token of the row from one vector."""

    name: ClassVar[str] = "mad_compression"
    task_kind: ClassVar[Kind] = Kind.reconstruction
    scores: ClassVar[frozenset[str]] = frozenset({"macro_accuracy"})

    length: int = 32
    vocabulary: int = 16
    """Number of token ids; the last one stands at the end alone."""
    train_examples: int = 12_800
    validation_examples: int = 1280
    test_examples: int = 1280

    def __post_init__(self) -> None:
        """Check the options."""
        self.generated_as(vocabulary=self.vocabulary, difficulty=f"{self.vocabulary - 1} symbols")
        if self.vocabulary < 2:
            raise ValueError(
                "task.vocabulary must be at least 2, for a symbol and the last token: got "
                f"{self.vocabulary}"
            )
        self.least(2, "a symbol and the last token")

    def words(self, length: int) -> int:
        """Return the number of random words for a row: one for each token but the last."""
        return length - 1

    def drawn(self, words: UInt64[np.ndarray, "n w"], length: int) -> Rows:
        """Return the rows that these random words decide."""
        del length
        last = self.vocabulary - 1
        tokens = np.pad(below(words, last), ((0, 0), (0, 1)), constant_values=last)
        return Rows(tokens, tokens.copy())

    def different_rows(self, length: int) -> float:
        """Return the binary logarithm of the number of different rows."""
        return (length - 1) * math.log2(self.vocabulary - 1)

    def token_text(self, token: int) -> str:
        """Return 1, 2, … for symbols, and # for the last token."""
        return "#" if token == self.vocabulary - 1 else str(token + 1)

    def baselines(self, split: str) -> list[Baseline]:
        """Compute two baselines on `split` that read nothing: a token, and a token by position.

        A baseline that reads the token of the question would be a copy of the answer.
        """
        guess, _ = self.habits()

        def by_position(tokens: np.ndarray) -> np.ndarray:
            """Return the last id at the end of the row, and `guess` elsewhere."""
            last = self.vocabulary - 1
            return np.where(tokens == last, last, guess)

        return [
            self.baseline(
                "majority",
                split,
                lambda tokens: np.full_like(tokens, guess),
                f"This baseline always answers {self.token_text(guess)}, the most frequent token "
                "in training. A model with this score has learnt nothing.",
            ),
            self.baseline(
                "last_position",
                split,
                by_position,
                "This baseline knows the last token, which is the same in every row, and answers "
                f"{self.token_text(guess)} elsewhere. A model with this score remembers nothing.",
            ),
        ]
