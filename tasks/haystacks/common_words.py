"""The words that a list repeats most often (common words of RULER, arXiv:2404.06654).

    1. kqzubt 2. wjelpa 3. kqzubt 4. hmoxci …   Which words are most common? kqzubt, …

A numbered list has `common` words `often` times each, and other words `seldom` times each, as many
as fit into the row, in random order. The common words are asked in the order of their first places.
RULER has 10 words 30 times and the others 3 times, or, below 4,096 tokens, 6 times and once; its
words are English, these are six random letters.
"""

import math
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, count, takewhile
from typing import ClassVar

from lra.conf.choices import by_name
from lra.tasks.haystacks.byte_rows import SEPARATOR, ByteRows, Dice, RowContent, letters_of
from lra.tasks.task import Baseline

LETTERS = 6
QUESTION = b"\nWhich words are most common? "


@by_name
@dataclass(kw_only=True, eq=False)
class CommonWords(ByteRows):
    """Answer the words that a list repeats most often."""

    name: ClassVar[str] = "common_words"

    length: int = 2048
    common: int = 10
    """Number of common words, which are asked."""
    often: int = 6
    """How often each common word is in the list."""
    seldom: int = 1
    """How often each other word is in the list."""

    def __post_init__(self) -> None:
        """Check the options."""
        items = self.common * self.often + self.seldom
        self.rows_of(
            f"{self.common} words {self.often} times, others {self.seldom} times",
            ending=len(QUESTION) + self.common * (LETTERS + len(SEPARATOR)) - len(SEPARATOR),
            sentences=sum(map(item_bytes, range(1, items + 1))),
            because=f"a list of {items} items",
        )
        if self.often <= self.seldom:
            raise ValueError(
                f"task.often must be above task.seldom={self.seldom}: got {self.often}"
            )

    def words(self, length: int) -> int:
        """Return the number of random words for a row."""
        others = (list_items(self.room(length)) - self.common * self.often) // self.seldom
        return self.common * (self.often + 1) + others * (self.seldom + 1) + 2

    def content(self, dice: Dice, room: int) -> RowContent:
        """Return the list as one sentence, and the question."""
        others = (list_items(room) - self.common * self.often) // self.seldom
        drawn = dice.distinct(self.common + others, 26**LETTERS)
        words = [letters_of(one, LETTERS) for one in drawn]
        both = words[: self.common] * self.often + words[self.common :] * self.seldom
        listed = [both[item] for item in dice.order(len(both)).tolist()]
        text = b"".join(b"%d. %s " % item for item in enumerate(listed, 1))
        common = {*words[: self.common]}
        return RowContent(
            [text.ljust(room)], QUESTION, [word for word in dict.fromkeys(listed) if word in common]
        )

    def different_rows(self, length: int) -> float:
        """Return a lower bound of the binary logarithm of the number of different rows."""
        del length
        return self.common * math.log2(26**LETTERS - self.common)

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the baselines of all diagnostics, and the first words, on `split`."""
        return [
            *super().baselines(split),
            self.said(
                "first_words",
                split,
                lambda text: [*dict.fromkeys(text.split()[1::2])],
                "This baseline answers the first different words of the list. A model with this "
                "score copies words, but does not count them.",
            ),
        ]


def item_bytes(number: int) -> int:
    """Return the bytes of an item of the list."""
    return len(f"{number}. ") + LETTERS + 1


@cache
def list_items(room: int) -> int:
    """Return the number of items of the longest list in `room` bytes."""
    bytes_so_far = accumulate(map(item_bytes, count(1)))
    return sum(1 for _ in takewhile(lambda size: size <= room, bytes_so_far))
