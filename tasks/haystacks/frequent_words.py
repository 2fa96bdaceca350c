"""The most frequent words of a row (frequent words of RULER, arXiv:2404.06654).

    ...... kqzubt ...... wjelpa ...... kqzubt …   Which words are most frequent after ......?
    kqzubt, wjelpa, hmoxci

l bytes before the question have l / 50 different words: a mark of six points, and words of six
random letters. The word of rank r has a share of about r^-alpha; the mark has rank 1 and is to be
ignored, and the words of ranks 2, 3 and 4 are asked. Words are in random order.

In RULER, counts are rounded down, so all rows have the same. Here, each count may be larger by one,
at random, where ranks stay different.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from lra.conf.choices import by_name
from lra.tasks.haystacks.byte_rows import SEPARATOR, ByteRows, Dice, RowContent, letters_of
from lra.tasks.task import Baseline

LETTERS = 6
MARK = b"." * LETTERS
ASKED = 3
BYTES_PER_WORD = 50
"""Bytes of a row for each different word."""
QUESTION = b"\nWhich words are most frequent after %s? " % MARK


@by_name
@dataclass(kw_only=True, eq=False)
class FrequentWords(ByteRows):
    """Answer the three most frequent words, after the mark."""

    name: ClassVar[str] = "frequent_words"

    alpha: float = 2.0
    """The word of rank r has a share of about r to the power of minus this."""

    def __post_init__(self) -> None:
        """Check the options."""
        self.rows_of(
            f"alpha {self.alpha:g}",
            ending=len(QUESTION) + ASKED * LETTERS + (ASKED - 1) * len(SEPARATOR),
            sentences=(ASKED + 2) * (LETTERS + 1),
            because=f"{ASKED + 2} words",
        )
        for length in {*self.lengths_of("train"), *self.lengths_of("test")}:
            counts = counts_by_rank(self.room(length), self.alpha)
            rest = counts.sum() - (counts[1:] + 1).sum()
            if len(counts) < ASKED + 2 or (np.diff(counts[: ASKED + 2]) >= 0).any() or rest < 1:
                raise ValueError(
                    f"task.alpha={self.alpha:g} gives the most frequent of {len(counts)} words in "
                    f"{length} bytes the counts {counts[: ASKED + 2].tolist()}, which must fall: "
                    "raise the length, or choose another task.alpha, such as 2"
                )

    def words(self, length: int) -> int:
        """Return the number of random words for a row."""
        room = self.room(length)
        return room // (LETTERS + 1) + 2 * (room // BYTES_PER_WORD) + 2

    def content(self, dice: Dice, room: int) -> RowContent:
        """Return the words in random order as one sentence, and the question."""
        counts = counts_by_rank(room, self.alpha).copy()
        for rank in range(1, len(counts)):
            # A count may only grow if it stays below that of the rank before, or of the last asked.
            if counts[min(rank, ASKED + 1) - 1] - counts[rank] >= 2:
                counts[rank] += dice.below(2)
        counts[0] -= counts.sum() - room // (LETTERS + 1)
        drawn = dice.distinct(len(counts) - 1, 26**LETTERS)
        words = [MARK, *(letters_of(one, LETTERS) for one in drawn)]
        ranks = np.repeat(np.arange(len(counts)), counts)[dice.order(int(counts.sum()))]
        text = b" ".join([words[rank] for rank in ranks.tolist()])
        return RowContent([text.ljust(room)], QUESTION, words[1 : 1 + ASKED])

    def different_rows(self, length: int) -> float:
        """Return a lower bound of the binary logarithm of the number of different rows."""
        del length
        return ASKED * math.log2(26**LETTERS - ASKED)

    def labels(self, context: bytes, answer: bytes, number: int) -> Mapping[str, int]:
        """Return the rank of an answer."""
        del context, answer
        return {"rank": number + 2}

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the baselines of all diagnostics, and the first words, on `split`."""
        return [
            *super().baselines(split),
            self.said(
                "first_words",
                split,
                lambda text: [word for word in dict.fromkeys(text.split()) if word != MARK],
                "This baseline answers the first different words of the row. A model with this "
                "score copies words, but does not count them.",
            ),
        ]


@cache
def counts_by_rank(room: int, alpha: float) -> Int[np.ndarray, " r"]:
    """Return the counts of words in `room` bytes, rounded down; the mark, the first, has the rest.

    There is a rank for each `BYTES_PER_WORD` bytes.
    """
    number = room // (LETTERS + 1)
    shares = np.arange(1, room // BYTES_PER_WORD + 1) ** -float(alpha)
    counts: Int[np.ndarray, " r"] = (number * shares / shares.sum()).astype(np.int64)
    counts[:1] += number - counts.sum()
    return counts
