"""Needles in a haystack (Hsieh et al., RULER, arXiv:2404.06654): values that sentences state.

    Rain fell on the hills. The value of calm-river is 4821903. A cart passed on the road. …
    What is the value of calm-river? 4821903

RULER's kinds on bytes: single needles (`keys=1`; with `haystack=noise` or `text`), several keys
(`keys=4`, or `haystack=needles`, whose other needles fill the row), several values of a key
(`values=4`), several keys asked (`keys=4 queries=4`). RULER chooses 40 depths, lengths from 4,096
to 131,072 tokens, and counts the values found in up to 128 generated tokens. Here a row has exactly
`length` bytes, and the values of a key are asked in the order in which they are stated.

NoLiMa (arXiv:2502.05167) objects that a string search finds such needles. With `overlap=false
key=synonym`, question and needle have no word in common:

    The value of calm-creek is 4821903. … What belongs to quiet-stream? 4821903

A passkey (Mohtashami & Jaggi, arXiv:2305.16300) is the only needle, of five digits.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import ClassVar

from lra.conf.choices import by_name
from lra.tasks.haystacks.books import BookRows
from lra.tasks.haystacks.byte_rows import SEPARATOR, Dice, RowContent, depth_of
from lra.tasks.haystacks.spellings import Spelling, different, longest, synonym_of, texts
from lra.tasks.task import Baseline

STATED = re.compile(rb"The value of .+? is (.+?)\. ")
SHORTEST = len("The value of a-b is 1. ")


class Haystack(StrEnum):
    """What is between the needles."""

    noise = auto()
    """One paragraph again and again."""
    text = auto()
    """Books of PG-19; each split has others."""
    needles = auto()
    """Needles with other keys."""


@by_name
@dataclass(kw_only=True, eq=False)
class Needle(BookRows):
    """Answer the values of keys that sentences in a haystack state."""

    name: ClassVar[str] = "needle"
    later: ClassVar[frozenset[str]] = frozenset({"overlap"})

    keys: int = 4
    """Number of keys; with haystack=needles, further ones fill the row."""
    values: int = 1
    """Number of values of each key, in as many sentences."""
    queries: int = 1
    """Number of keys that are asked."""
    haystack: Haystack = Haystack.noise
    """Between the sentences: noise, text or needles."""
    key: Spelling = Spelling.word
    """Spelling of keys: word, digits, hex, person or synonym."""
    value: Spelling = Spelling.digits
    """Spelling of values: word, digits, hex or person."""
    digits: int = 7
    """Number of digits of keys and values that are digits."""
    overlap: bool = True
    """Whether the question has the words of the needle; false: synonyms, with key=synonym."""

    def __post_init__(self) -> None:
        """Check the options."""
        if not self.overlap and self.key is not Spelling.synonym:
            raise ValueError(
                f"task.overlap=false asks for synonyms of keys: got task.key={self.key}; set "
                "task.key=synonym"
            )
        key, value = (longest(kind, self.digits) for kind in (self.key, self.value))
        self._longest = len("The value of  is . ") + key + value
        asked = self.queries * (key + 2) + self.queries * self.values * (value + 2)
        needles = self.keys * self.values
        self.rows_of(
            f"{self.queries} of {self.keys} keys, {self.values} values each, in {self.haystack}",
            ending=len("\nWhat is the value of ? ") + asked,
            sentences=needles * self._longest,
            because=f"{needles} sentences of up to {self._longest} bytes",
        )
        if self.queries > self.keys:
            raise ValueError(
                f"task.queries must be at most task.keys={self.keys}: got {self.queries}"
            )
        most = self._most(self.room(self.max_length))
        for option, kind in {"key": self.key, "value": self.value}.items():
            if (there := different(kind, self.digits)) < most + needles:
                raise ValueError(
                    f"task.{option}={kind} has {there:,} different texts, and a row of "
                    f"{self.max_length:,} bytes may need {most + needles:,}: set "
                    f"task.{option}=hex, or lower the length"
                )

    @property
    def reads_books(self) -> bool:
        """Whether the background is text of books."""
        return self.haystack is Haystack.text

    def _most(self, room: int) -> int:
        """Return the largest number of keys in a haystack of so many bytes."""
        return self.keys + (room // SHORTEST if self.haystack is Haystack.needles else 0)

    def words(self, length: int) -> int:
        """Return a bound of the number of random words for a row."""
        return 7 * (self._most(self.room(length)) + self.keys * self.values) + 1

    def content(self, dice: Dice, room: int) -> RowContent:
        """Return needles in random order, and the questions about the first keys."""
        number = self.keys * self.values
        most = self._most(room)
        keys = texts(self.key, dice, most, self.digits)
        values = texts(self.value, dice, most - self.keys + number, self.digits)
        owners = [*(keys[: self.keys] * self.values), *keys[self.keys :]]
        needles = [b"The value of %s is %s. " % both for both in zip(owners, values, strict=True)]
        size = sum(map(len, needles[:number]))
        used = number
        if self.haystack is Haystack.needles:
            while size + self._longest <= room:
                size += len(needles[used])
                used += 1
        order = dice.order(used).tolist()
        answers = [
            values[needle]
            for key in range(self.queries)
            for needle in order
            if needle < number and needle % self.keys == key
        ]
        asked = keys[: self.queries]
        question = b"\nWhat is the value of %s? " % SEPARATOR.join(asked)
        if not self.overlap:
            question = b"\nWhat belongs to %s? " % SEPARATOR.join(map(synonym_of, asked))
        return RowContent([needles[needle] for needle in order], question, answers)

    def background(self, split: str, dice: Dice, size: int) -> bytes:
        """Return the bytes between the sentences of a row."""
        if self.haystack is Haystack.needles:
            return b" " * size
        return super().background(split, dice, size)

    def different_rows(self, length: int) -> float:
        """Return a lower bound of the binary logarithm of the number of different rows."""
        del length
        return math.log2(different(self.value, self.digits)) + math.log2(
            different(self.key, self.digits)
        )

    def labels(self, context: bytes, answer: bytes, number: int) -> Mapping[str, int]:
        """Return the depth of the sentence that states the answer."""
        del number
        return {"depth": depth_of(context.find(b" is %s. " % answer), context)}

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the baselines of all diagnostics, and the last and first value, on `split`."""
        return [
            *super().baselines(split),
            self.said(
                "last_value",
                split,
                lambda text: STATED.findall(text)[::-1],
                "This baseline answers the value that is nearest to the question, and then those "
                "before it. A model with this score finds values, but does not look up the key.",
            ),
            self.said(
                "first_value",
                split,
                STATED.findall,
                "This baseline answers the first values of the row. A model with this score finds "
                "values, but does not look up the key.",
            ),
        ]


@by_name
@dataclass(kw_only=True, eq=False)
class Passkey(Needle):
    """Answer the one value of five digits in a haystack."""

    name: ClassVar[str] = "passkey"

    keys: int = 1
    digits: int = 5
