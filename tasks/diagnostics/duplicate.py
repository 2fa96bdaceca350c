"""Duplication (Kitaev et al., Reformer, arXiv:2001.04451, section 4).

    0 5 2 9 1 0 5 2 9 1      0 w 0 w, w random over N symbols
    . . . . . 5 2 9 1 .      from the second 0 on, the next token

Every answer stands the same distance back, half a row: a model that sees fewer tokens stays at
chance, 1 / N. The paper has N = 127 and rows of 1,024 tokens, which one layer of full attention
solves, and one of hashed attention with 4 rounds or more nearly so.
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
    """The task; see the module's text."""

    name: ClassVar[str] = "duplicate"
    multiple: ClassVar[int] = 2

    length: int = 1024
    symbols: int = 127
    """Different symbols; the border is another token id."""

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        self.generated_as(vocabulary=self.symbols + 1, difficulty=f"{self.symbols} symbols")
        self.least(4, "two borders and a symbol twice")
        for option, tokens in (("length", self.length), ("test_length", self.tested_length)):
            if tokens % 2:
                raise ValueError(
                    f"task.{option}={tokens}: 0 w 0 w has an even number of tokens; wanted "
                    f"{tokens - 1} or {tokens + 1}"
                )

    def words(self, length: int) -> int:
        """Return how many random words a row is made of."""
        return length // 2 - 1

    def drawn(self, words: UInt64[np.ndarray, "n w"], length: int) -> Rows:
        """Return the rows that some random words make."""
        del length
        return duplicate_rows(words, symbols=self.symbols)

    def different_rows(self, length: int) -> float:
        """Return the binary logarithm of the number of rows."""
        return (length // 2 - 1) * math.log2(self.symbols)

    def token_text(self, token: int) -> str:
        """Return the token's number; 0 is the border."""
        return str(token)


def duplicate_rows(words: UInt64[np.ndarray, "n w"], *, symbols: int) -> Rows:
    """Return the rows 0 w 0 w, a pure function of a random word a symbol."""
    content = 1 + below(words, symbols)
    border = np.full((len(words), 1), BORDER)
    tokens = np.concatenate((border, content, border, content), axis=1)
    answers = np.full_like(tokens, NOT_ASKED)
    answers[:, words.shape[1] + 1 : -1] = content
    return Rows(tokens, answers)
