"""Selective copying (Gu & Dao, Mamba, arXiv:2312.00752; Jing et al. 2019, arXiv:1706.02761).

    . . 3 . 1 . . . 3 . 2 . | ? ? ? ?      symbols between blanks, then one mark for each symbol
                              3 1 3 2      the answers are the symbols, in order

To find the symbol for a mark, a model must count symbols, because blanks vary. If `items` is half
of the length, there are no blanks, and the task is plain copying.

With `placement=uniform`, all choices of positions for the symbols are equally frequent. `gaps` puts
each blank before a symbol that is drawn (arXiv:2403.17844; no blank follows the last symbol), and
`front` puts all blanks after the symbols. With `mark=once`, one mark comes before the places of the
answers, which have blanks. `placement=front mark=once` is the copying memory (arXiv:1511.06464).

The Mamba paper uses 16 symbols at 4,096 positions, 16 token ids (14 symbols, blank and mark), and 2
layers of width 64 trained for 400,000 steps.
"""

import math
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import ClassVar

import numpy as np
from jaxtyping import Int, UInt64

from lra.conf.choices import by_name
from lra.tasks.diagnostics.base import NOT_ASKED, DiagnosticTask, Rows, below, distinct
from lra.tasks.task import Baseline

BLANK = 0


class Placement(StrEnum):
    """Where the blanks are: anywhere, before symbols that are drawn, or after all symbols."""

    uniform = auto()
    gaps = auto()
    front = auto()


class Mark(StrEnum):
    """What is at the places of the answers: a mark at each, or blanks after one mark."""

    each = auto()
    once = auto()


@by_name
@dataclass(kw_only=True, eq=False)
class SelectiveCopy(DiagnosticTask):
    """Copy the symbols of a row in order, without the blanks between them."""

    name: ClassVar[str] = "selective_copy"
    later: ClassVar[frozenset[str]] = frozenset({"placement", "mark"})

    length: int = 4112
    items: int = 16
    """Number of symbols to copy in a row."""
    symbols: int = 14
    """Number of different symbols; blank and mark are two further token ids."""
    placement: Placement = Placement.uniform
    """Where the blanks are: uniform (anywhere), gaps (before symbols) or front (after them)."""
    mark: Mark = Mark.each
    """Places of the answers: a mark at each, or blanks with one mark before them (once)."""

    def __post_init__(self) -> None:
        """Check the options."""
        items, symbols = self.items, self.symbols
        differs = f", {self.placement}" * (self.placement is not Placement.uniform)
        differs += ", one mark" * (self.mark is Mark.once)
        difficulty = f"{items} items of {symbols} symbols{differs}"
        self.generated_as(vocabulary=symbols + 2, difficulty=difficulty)
        self.ending = items + (self.mark is Mark.once)
        """Number of tokens after symbols and blanks."""
        end = f" and {items} marks" if self.mark is Mark.each else f", a mark and {items} blanks"
        self.least(items + self.ending, f"{items} symbols (task.items){end}")

    def words(self, length: int) -> int:
        """Return the number of random words for a row: of symbols, and of positions or blanks."""
        blanks = length - self.items - self.ending
        decided = {Placement.uniform: self.items, Placement.gaps: blanks, Placement.front: 0}
        return self.items + decided[self.placement]

    def drawn(self, words: UInt64[np.ndarray, "n w"], length: int) -> Rows:
        """Return the rows that these random words decide."""
        content = 1 + below(words[:, : self.items], self.symbols)
        positions = self._positions(words[:, self.items :], length - self.ending)
        tokens = np.full((len(words), length), BLANK, np.int64)
        np.put_along_axis(tokens, positions, content, axis=1)
        marks = slice(-self.items, None) if self.mark is Mark.each else -self.items - 1
        tokens[:, marks] = self.symbols + 1
        answers = np.full_like(tokens, NOT_ASKED)
        answers[:, -self.items :] = content
        return Rows(tokens, answers)

    def _positions(
        self, words: UInt64[np.ndarray, "n w"], length: int
    ) -> Int[np.ndarray, "n {self.items}"]:
        """Return the positions of the symbols among the first `length` tokens."""
        if self.placement is Placement.uniform:
            return np.sort(distinct(words, length), axis=1)
        number = len(words) * self.items
        before = np.zeros(number, np.int64)
        if self.placement is Placement.gaps:
            row = self.items * np.arange(len(words))[:, None]
            before = np.bincount((row + below(words, self.items)).ravel(), minlength=number)
        return before.reshape(-1, self.items).cumsum(1) + np.arange(self.items)

    def different_rows(self, length: int) -> float:
        """Return the binary logarithm of the number of different rows."""
        places = length - self.ending
        arrangements = {
            Placement.uniform: math.comb(places, self.items),
            Placement.gaps: math.comb(places - 1, self.items - 1),
            Placement.front: 1,
        }
        return self.items * math.log2(self.symbols) + math.log2(arrangements[self.placement])

    def token_text(self, token: int) -> str:
        """Return 1, 2, … for symbols, _ for blank, and ? for the mark."""
        return {BLANK: "_", self.symbols + 1: "?"}.get(token, str(token))

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the baselines of all diagnostics, and the last symbol, on `split`."""

        def last_symbol(tokens: np.ndarray) -> np.ndarray:
            """Return the last symbol before the marks of each row, as an answer to every mark."""
            before = tokens[:, : -self.ending]
            # `argmax` finds the first symbol of the row read backwards.
            positions = before.shape[1] - 1 - (before != BLANK)[:, ::-1].argmax(1)
            return np.take_along_axis(before, positions[:, None], axis=1)

        baselines = [
            *super().baselines(split),
            self.baseline(
                "last_symbol",
                split,
                last_symbol,
                "This baseline always answers the last symbol before the marks. The answer is "
                f"correct for 1 of {self.items} questions, and by chance for the others.",
            ),
        ]
        if self.placement is Placement.front:
            nats, length = math.log(self.symbols), max(self.lengths_of(split))
            sentence = (
                "This baseline guesses each symbol at random. Averaged over all positions, as in "
                f"papers, its loss is {self.items} ln {self.symbols} / {length} = "
                f"{self.items * nats / length:.4f} nats."
            )
            loss = {"loss": nats}
            baselines.append(Baseline("blind_guess", 1 / self.symbols, None, sentence, loss))
        return baselines
