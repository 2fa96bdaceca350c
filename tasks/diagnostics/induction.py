"""Induction heads (Olsson et al., arXiv:2209.11895, as in Gu & Dao, Mamba, arXiv:2312.00752).

    7 2 9 * 4 4 1 8 2 5 … 3 *      a special token once, somewhere, and again at the end
                            4      the token that followed it

The smallest test of looking something up by what stood before it: with softmax it takes two layers,
one that tells each token its predecessor, and one that searches for the special token there. How
far back lies the answer is uniform up to the whole row.

The Mamba paper trains 2 layers of width 64 at length 256 with 16 token ids (15 symbols), and tests
from 64 to 1,048,576 tokens: `test_length`.
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
    """The task; see the module's text."""

    name: ClassVar[str] = "induction"

    length: int = 256
    symbols: int = 15
    """Different ordinary tokens; the special one is another token id."""

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        self.generated_as(vocabulary=self.symbols + 1, difficulty=f"{self.symbols} symbols")
        self.least(3, "the special token, what follows it, and the special token again")

    def words(self, length: int) -> int:
        """Return how many random words a row is made of."""
        return length

    def drawn(self, words: UInt64[np.ndarray, "n w"], length: int) -> Rows:
        """Return the rows that random 64-bit integers make; there are as many as a row is long."""
        del length
        return induction_rows(words, symbols=self.symbols)

    def different_rows(self, length: int) -> float:
        """Return the binary logarithm of the number of rows."""
        return (length - 2) * math.log2(self.symbols) + math.log2(length - 2)

    def token_text(self, token: int) -> str:
        """Return 1, 2, … for symbols, * for the special token."""
        return "*" if token == SPECIAL else str(token)


def induction_rows(words: UInt64[np.ndarray, "n l"], *, symbols: int) -> Rows:
    """Return rows with the special token twice, a pure function of a random word a token."""
    number, length = words.shape
    tokens = 1 + below(words, symbols)
    # The last token is the special one anyway: its word says where the first one stands.
    first = below(words[:, -1], length - 2)
    rows = np.arange(number)
    answers = np.full_like(tokens, NOT_ASKED)
    answers[:, -1] = tokens[rows, first + 1]
    tokens[rows, first] = tokens[:, -1] = SPECIAL
    return Rows(tokens, answers)
