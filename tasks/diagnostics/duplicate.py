"""Duplication (Kitaev et al., Reformer, arXiv:2001.04451, section 4).

    0 5 2 9 1 0 5 2 9 1      0 w 0 w, w random over N symbols
    . . . . . 5 2 9 1 .      from the second 0 on, the next token

Every answer stands the same distance back, half a row: a model that sees fewer tokens stays at
chance, 1 / N. The paper has N = 127 and rows of 1,024 tokens, which one layer of full attention
solves, and one of hashed attention with 4 rounds or more nearly so.
"""

import math
from typing import ClassVar

import numpy as np
from jaxtyping import UInt64

from tasks.diagnostics.base import NOT_ASKED, DiagnosticTask, Rows, below

BORDER = 0


class Duplicate(DiagnosticTask):
    """The task; see the module's text.

    Args:
        length: Tokens of a training or validation row: an even number.
        test_length: Tokens of a test row, an even number; null: the same.
        symbols: Different symbols; the border is another token id.
        train_examples: Training rows.
        validation_examples: Validation rows.
        test_examples: Test rows.
        data_seed: Of the rows.
    """

    name: ClassVar[str] = "duplicate"
    multiple: ClassVar[int] = 2

    def __init__(
        self,
        *,
        length: int = 1024,
        test_length: int | None = None,
        symbols: int = 127,
        train_examples: int = 50_000,
        validation_examples: int = 2000,
        test_examples: int = 2000,
        data_seed: int = 0,
    ) -> None:
        self.symbols = symbols
        self.generated_as(
            vocabulary=symbols + 1,
            options={"symbols": symbols},
            difficulty=f"{symbols} symbols",
            length=length,
            test_length=test_length,
            train_examples=train_examples,
            validation_examples=validation_examples,
            test_examples=test_examples,
            data_seed=data_seed,
        )
        self.least(4, "two borders and a symbol twice")
        for option, tokens in (("length", self.length), ("test_length", self.test_length)):
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

    def spelled(self, token: int) -> str:
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
