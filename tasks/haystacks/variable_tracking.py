"""Variables that get their value from each other (variable tracking of RULER, arXiv:2404.06654).

    QWHRT = 12345. Rain fell on the hills. BMZKA = 67890. UEIPS = QWHRT. … ZRTOP = UEIPS. …
    Which names are 12345? QWHRT, UEIPS, ZRTOP

A chain has a number and `hops` + 1 names: the first name gets the number, and each later one the
value of the one before it. Sentences of all chains are mixed in noise, in the order of each chain.
Names are asked in that order. RULER has one chain of 4 hops; then every name of the row is an
answer, and the baseline `names_in_order` reaches 100 %.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from lra.conf.choices import by_name
from lra.tasks.haystacks.byte_rows import ByteRows, Dice, RowContent, depth_of, letters_of
from lra.tasks.task import Baseline

LETTERS, DIGITS = 5, 5
NAMES = re.compile(rb"([A-Z]{5}) = ")
SENTENCE = len("AAAAA = AAAAA. ")


@by_name
@dataclass(kw_only=True, eq=False)
class VariableTracking(ByteRows):
    """Answer all names that have a number, directly or by other names."""

    name: ClassVar[str] = "variable_tracking"

    chains: int = 2
    """Number of chains, one of which is asked."""
    hops: int = 4
    """Number of names of a chain after the first."""

    def __post_init__(self) -> None:
        """Check the options."""
        sentences = self.chains * (self.hops + 1)
        self.rows_of(
            f"{self.chains} chains of {self.hops} hops",
            ending=len("\nWhich names are 12345? ") + (LETTERS + 2) * (self.hops + 1) - 2,
            sentences=sentences * SENTENCE,
            because=f"{sentences} sentences of {SENTENCE} bytes",
        )

    def words(self, length: int) -> int:
        """Return the number of random words for a row."""
        del length
        return 3 * self.chains * (self.hops + 1) + self.chains + 1

    def content(self, dice: Dice, room: int) -> RowContent:
        """Return the sentences of all chains, mixed, and the question about the first chain."""
        del room
        links = self.hops + 1
        numbers = [b"%0*d" % (DIGITS, one) for one in dice.distinct(self.chains, 10**DIGITS)]
        drawn = dice.distinct(self.chains * links, 26**LETTERS)
        names = [letters_of(one, LETTERS, ord("A")) for one in drawn]
        latest = numbers.copy()
        """What the next name of each chain gets."""
        left = [iter(names[chain * links : (chain + 1) * links]) for chain in range(self.chains)]
        sentences = []
        for slot in dice.order(self.chains * links).tolist():
            chain = slot // links
            name = next(left[chain])
            sentences.append(b"%s = %s. " % (name, latest[chain]))
            latest[chain] = name
        return RowContent(sentences, b"\nWhich names are %s? " % numbers[0], names[:links])

    def different_rows(self, length: int) -> float:
        """Return a lower bound of the binary logarithm of the number of different rows."""
        del length
        number = self.chains * (self.hops + 1)
        return number * math.log2(26**LETTERS - number)

    def labels(self, context: bytes, answer: bytes, number: int) -> Mapping[str, int]:
        """Return the depth of the sentence that states the answer, and its number in the chain."""
        return {"depth": depth_of(context.find(b"%s = " % answer), context), "hop": number}

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the baselines of all diagnostics, and the first names of the row, on `split`."""
        return [
            *super().baselines(split),
            self.said(
                "names_in_order",
                split,
                NAMES.findall,
                "This baseline answers the first names of the row in order. A model with this "
                "score copies names, but does not follow a chain.",
            ),
        ]
