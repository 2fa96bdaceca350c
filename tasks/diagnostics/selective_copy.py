"""Selective copying (Gu & Dao, Mamba, arXiv:2312.00752; Jing et al. 2019, arXiv:1706.02761).

    . . 3 . 1 . . . 3 . 2 . | ? ? ? ?      symbols between blanks, then one mark for each symbol
                              3 1 3 2      the answers are the symbols, in order

To find the symbol for a mark, a model must count symbols, because blanks vary. Copying at fixed
positions would need only a fixed distance. If `items` is half of the length, there are no blanks,
and the task is plain copying.

The Mamba paper uses 16 symbols at 4,096 positions, 16 token ids (14 symbols, blank and mark), and 2
layers of width 64 trained for 400,000 steps.
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
    """Copy the symbols of a row in order, without the blanks between them."""

    name: ClassVar[str] = "selective_copy"

    length: int = 4112
    items: int = 16
    """Number of symbols to copy in a row."""
    symbols: int = 14
    """Number of different symbols; blank and mark are two further token ids."""

    def __post_init__(self) -> None:
        """Check the options."""
        items, symbols = self.items, self.symbols
        self.generated_as(vocabulary=symbols + 2, difficulty=f"{items} items of {symbols} symbols")
        self.least(2 * items, f"{items} symbols (task.items) and {items} marks")

    def words(self, length: int) -> int:
        """Return the number of random words for a row: two for each symbol."""
        del length
        return 2 * self.items

    def drawn(self, words: UInt64[np.ndarray, "n w"], length: int) -> Rows:
        """Return the rows that these random words decide."""
        return copy_rows(words, length=length, symbols=self.symbols)

    def different_rows(self, length: int) -> float:
        """Return the binary logarithm of the number of different rows."""
        arrangements = math.comb(length - self.items, self.items)
        return self.items * math.log2(self.symbols) + math.log2(arrangements)

    def token_text(self, token: int) -> str:
        """Return 1, 2, … for symbols, _ for blank, and ? for the mark."""
        return {BLANK: "_", self.symbols + 1: "?"}.get(token, str(token))

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the baselines of all diagnostics, and the last symbol, on `split`."""

        def last_symbol(tokens: np.ndarray) -> np.ndarray:
            """Return the last symbol before the marks of each row, as an answer to every mark."""
            before = tokens[:, : -self.items]
            # `argmax` finds the first symbol of the row read backwards.
            positions = before.shape[1] - 1 - (before != BLANK)[:, ::-1].argmax(1)
            return np.take_along_axis(before, positions[:, None], axis=1)

        return [
            *super().baselines(split),
            self.baseline(
                "last_symbol",
                split,
                last_symbol,
                "This baseline always answers the last symbol before the marks. The answer is "
                f"correct for 1 of {self.items} questions, and by chance for the others.",
            ),
        ]


def copy_rows(words: UInt64[np.ndarray, "n w"], *, length: int, symbols: int) -> Rows:
    """Return rows of symbols between blanks, and marks.

    Each row has 2 random words for each symbol: the first half chooses symbols, the second half
    their positions.
    """
    items = words.shape[1] // 2
    content = 1 + below(words[:, :items], symbols)
    positions = np.sort(distinct(words[:, items:], length - items), axis=1)
    tokens = np.full((len(words), length), BLANK, np.int64)
    np.put_along_axis(tokens, positions, content, axis=1)
    tokens[:, -items:] = symbols + 1
    answers = np.full_like(tokens, NOT_ASKED)
    answers[:, -items:] = content
    return Rows(tokens, answers)
