"""Selective copying (Gu & Dao, Mamba, arXiv:2312.00752; Jing et al. 2019, arXiv:1706.02761).

    . . 3 . 1 . . . 3 . 2 . | ? ? ? ?      symbols scattered among blanks, then as many marks
                              3 1 3 2      the symbols, in order

Where a symbol stands does not say which one of the answers it is: that takes counting what came
before it, where copying at fixed positions takes a distance alone. With `items` as large as the
space for them there are no blanks, and the task is plain copying.

The Mamba paper has 16 symbols among 4,096 positions, 16 token ids with blank and mark (14 symbols),
and 2 layers of width 64 with 400,000 steps.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import UInt64

from lra.conf.choices import by_name
from lra.tasks.diagnostics.base import NOT_ASKED, DiagnosticTask, Rows, below, distinct
from lra.tasks.task import Baseline

BLANK = 0


@by_name
@dataclass(kw_only=True, eq=False)
class SelectiveCopy(DiagnosticTask):
    """The task; see the module's text."""

    name: ClassVar[str] = "selective_copy"

    length: int = 4112
    items: int = 16
    """Symbols that are to be copied."""
    symbols: int = 14
    """Different symbols; blank and mark are two more token ids."""

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        items, symbols = self.items, self.symbols
        self.generated_as(vocabulary=symbols + 2, difficulty=f"{items} items of {symbols} symbols")
        self.least(2 * items, f"{items} items and as many marks")

    def words(self, length: int) -> int:
        """Return how many random words a row is made of."""
        del length
        return 2 * self.items

    def drawn(self, words: UInt64[np.ndarray, "n w"], length: int) -> Rows:
        """Return the rows that some random words make."""
        return copy_rows(words, length=length, symbols=self.symbols)

    def different_rows(self, length: int) -> float:
        """Return the binary logarithm of the number of rows."""
        arrangements = math.comb(length - self.items, self.items)
        return self.items * math.log2(self.symbols) + math.log2(arrangements)

    def token_text(self, token: int) -> str:
        """Return 1, 2, … for symbols, _ for blank, ? for the mark."""
        return {BLANK: "_", self.symbols + 1: "?"}.get(token, str(token))

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the baselines on `split`: those of all diagnostics, and the last symbol."""

        def last_symbol(tokens: np.ndarray) -> np.ndarray:
            before = tokens[:, : -self.items]
            positions = before.shape[1] - 1 - (before != BLANK)[:, ::-1].argmax(1)
            return np.take_along_axis(before, positions[:, None], axis=1)

        return [
            *super().baselines(split),
            self.baseline(
                "last_symbol",
                split,
                last_symbol,
                "always answers the last symbol before the marks, which is correct for 1 of "
                f"{self.items} questions, and by chance for the others",
            ),
        ]


def copy_rows(words: UInt64[np.ndarray, "n w"], *, length: int, symbols: int) -> Rows:
    """Return rows of scattered symbols and marks, a pure function of 2 random words an item."""
    items = words.shape[1] // 2
    content = 1 + below(words[:, :items], symbols)
    positions = np.sort(distinct(words[:, items:], length - items), axis=1)
    tokens = np.full((len(words), length), BLANK, np.int64)
    np.put_along_axis(tokens, positions, content, axis=1)
    tokens[:, -items:] = symbols + 1
    answers = np.full_like(tokens, NOT_ASKED)
    answers[:, -items:] = content
    return Rows(tokens, answers)
