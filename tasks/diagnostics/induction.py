"""Induction heads (Olsson et al., arXiv:2209.11895, as in Gu & Dao, Mamba, arXiv:2312.00752).

    7 2 9 * 4 4 1 8 2 5 … 3 *      a special token once at a random position, and at the end
                            4      the token that followed the first one

This is the smallest test of looking up a token by its predecessor. With softmax attention it takes
two layers: the first copies each token's predecessor to it, and the second searches for the special
token among these predecessors. All distances up to the whole row are equally frequent.

The Mamba paper trains 2 layers of width 64 at length 256 with 16 token ids (15 symbols), and tests
(`test_length`) with 64 to 1,048,576 tokens.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import UInt64

from lra.conf.choices import by_name
from lra.tasks.diagnostics.base import NOT_ASKED, DiagnosticTask, Rows, below

SPECIAL = 0


@by_name
@dataclass(kw_only=True, eq=False)
class Induction(DiagnosticTask):
    """Find the token that followed the first special token."""

    name: ClassVar[str] = "induction"

    length: int = 256
    symbols: int = 15
    """Number of different ordinary tokens; the special one is a further token id."""

    def __post_init__(self) -> None:
        """Check the options."""
        self.generated_as(vocabulary=self.symbols + 1, difficulty=f"{self.symbols} symbols")
        self.least(3, "the special token, the token that follows it, and the special token again")

    def words(self, length: int) -> int:
        """Return the number of random words for a row: one for each token."""
        return length

    def drawn(self, words: UInt64[np.ndarray, "n w"], length: int) -> Rows:
        """Return the rows that these random words decide."""
        del length
        return induction_rows(words, symbols=self.symbols)

    def different_rows(self, length: int) -> float:
        """Return the binary logarithm of the number of different rows."""
        return (length - 2) * math.log2(self.symbols) + math.log2(length - 2)

    def token_text(self, token: int) -> str:
        """Return 1, 2, … for symbols, * for the special token."""
        return "*" if token == SPECIAL else str(token)


def induction_rows(words: UInt64[np.ndarray, "n l"], *, symbols: int) -> Rows:
    """Return rows with the special token twice; each random word decides one token."""
    number, length = words.shape
    tokens = 1 + below(words, symbols)
    # The last token is always the special one, so its word decides the position of the first one.
    first = below(words[:, -1], length - 2)
    rows = np.arange(number)
    answers = np.full_like(tokens, NOT_ASKED)
    answers[:, -1] = tokens[rows, first + 1]
    tokens[rows, first] = tokens[:, -1] = SPECIAL
    return Rows(tokens, answers)
