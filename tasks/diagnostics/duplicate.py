"""Duplication (Kitaev et al., Reformer, arXiv:2001.04451, section 4).

    0 5 2 9 1 0 5 2 9 1      0 w 0 w with a random word w over N symbols
    . . . . . 5 2 9 1 .      the answer is the next token, from the second 0 on

Every answer is half a row back. A model that reads fewer tokens has an accuracy of 1 / N. The paper
uses N = 127 and rows of 1,024 tokens. One layer of full attention solves them, and one layer of
hashed attention with 4 or more rounds nearly does.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import UInt64

from lra.conf.choices import by_name
from lra.tasks.diagnostics.base import NOT_ASKED, DiagnosticTask, Rows, below

BORDER = 0


@by_name
@dataclass(kw_only=True, eq=False)
class Duplicate(DiagnosticTask):
    """Repeat a random word that was read half a row ago."""

    name: ClassVar[str] = "duplicate"
    multiple: ClassVar[int] = 2

    length: int = 1024
    symbols: int = 127
    """Number of different symbols; the border is a further token id."""

    def __post_init__(self) -> None:
        """Check the options."""
        self.generated_as(vocabulary=self.symbols + 1, difficulty=f"{self.symbols} symbols")
        self.least(4, "two border tokens and at least one symbol, which occurs twice")
        for option, tokens in (("length", self.length), ("test_length", self.tested_length)):
            if tokens % 2:
                raise ValueError(
                    f"task.{option} must be even, because a row is the same half twice: got "
                    f"{tokens}; wanted {tokens - 1} or {tokens + 1}"
                )

    def words(self, length: int) -> int:
        """Return the number of random words for a row: one for each symbol of w."""
        return length // 2 - 1

    def drawn(self, words: UInt64[np.ndarray, "n w"], length: int) -> Rows:
        """Return the rows that these random words decide."""
        del length
        return duplicate_rows(words, symbols=self.symbols)

    def different_rows(self, length: int) -> float:
        """Return the binary logarithm of the number of different rows."""
        return (length // 2 - 1) * math.log2(self.symbols)

    def token_text(self, token: int) -> str:
        """Return the token's number; 0 is the border."""
        return str(token)


def duplicate_rows(words: UInt64[np.ndarray, "n w"], *, symbols: int) -> Rows:
    """Return rows 0 w 0 w; each random word decides one symbol of w."""
    content = 1 + below(words, symbols)
    border = np.full((len(words), 1), BORDER)
    tokens = np.concatenate((border, content, border, content), axis=1)
    answers = np.full_like(tokens, NOT_ASKED)
    # From the second border on, at 1 + len(w), the answer is the next token.
    answers[:, words.shape[1] + 1 : -1] = content
    return Rows(tokens, answers)
