"""Pairs of random keys and values, one of which is asked (as json_kv of HELMET, arXiv:2410.02694).

    calls: 0f…a1: 93…0c. 77…5e: 1b…d2. …   ? 0f…a1: 93…0c          form=hex
           Ada Marsh: 5552134. Leo Hall: 9083117. …   ? Leo Hall: 9083117     form=names

With `form=names`, a row is a phone book. Pairs fill the row, or `pairs` of them are in noise.
`position=first` asks for the first pair, so that all other pairs are between it and the question.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import ClassVar

from lra.conf.choices import by_name
from lra.tasks.haystacks.byte_rows import ByteRows, Dice, RowContent, depth_of
from lra.tasks.haystacks.spellings import Spelling, different, longest, texts
from lra.tasks.task import Baseline

VALUES = re.compile(rb": (\w+)\. ")
DIGITS = 7


class PairForm(StrEnum):
    """What keys and values are."""

    hex = auto()
    """32 hexadecimal digits."""
    names = auto()
    """A person's first and last name; the value is a number of 7 digits."""


SPELLINGS = {
    PairForm.hex: (Spelling.hex, Spelling.hex),
    PairForm.names: (Spelling.person, Spelling.digits),
}


class AskedPair(StrEnum):
    """Which pair is asked."""

    random = auto()
    """Any pair."""
    first = auto()
    """The first one of the row."""


@by_name
@dataclass(kw_only=True, eq=False)
class KeyValue(ByteRows):
    """Answer the value of one of many pairs."""

    name: ClassVar[str] = "key_value"

    pairs: int | None = None
    """Number of pairs; noise fills the row. null: pairs fill it."""
    form: PairForm = PairForm.hex
    """Keys and values: hex or names."""
    position: AskedPair = AskedPair.random
    """The asked pair: random or first."""

    def __post_init__(self) -> None:
        """Check the options."""
        self._kinds = SPELLINGS[self.form]
        key, value = (longest(kind, DIGITS) for kind in self._kinds)
        self._longest = key + value + len(": . ")
        told = "as many as fit" if self.pairs is None else str(self.pairs)
        number = self.pairs or 2
        self.rows_of(
            f"{told} pairs, {self.form}, asked {self.position}",
            ending=len("\n? : ") + key + value,
            sentences=number * self._longest,
            because=f"{number} pairs of up to {self._longest} bytes",
        )
        most = self._number(self.room(self.max_length))
        people = different(self._kinds[0], DIGITS)
        if most > people:
            raise ValueError(
                f"task.form=names has {people:,} people, and a row of {self.max_length:,} bytes "
                f"needs {most:,}: set task.form=hex, or lower task.pairs or the length"
            )

    def _number(self, room: int) -> int:
        """Return the number of pairs in a row."""
        return room // self._longest if self.pairs is None else self.pairs

    def words(self, length: int) -> int:
        """Return the number of random words for a row."""
        return 5 * self._number(self.room(length)) + 2

    def content(self, dice: Dice, room: int) -> RowContent:
        """Return the pairs and the question about one of them."""
        number = self._number(room)
        keys, values = (texts(kind, dice, number, DIGITS) for kind in self._kinds)
        asked = dice.below(number) if self.position is AskedPair.random else 0
        pairs = [b"%s: %s. " % both for both in zip(keys, values, strict=True)]
        return RowContent(pairs, b"\n? %s: " % keys[asked], [values[asked]])

    def different_rows(self, length: int) -> float:
        """Return a lower bound of the binary logarithm of the number of different rows."""
        del length
        return math.log2(different(self._kinds[0], DIGITS)) + math.log2(
            different(self._kinds[1], DIGITS)
        )

    def labels(self, context: bytes, answer: bytes, number: int) -> Mapping[str, int]:
        """Return the depth of the sentence that states the answer."""
        del number
        return {"depth": depth_of(context.find(b": %s. " % answer), context)}

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the baselines of all diagnostics, and the last and first value, on `split`."""
        return [
            *super().baselines(split),
            self.said(
                "last_value",
                split,
                lambda text: VALUES.findall(text)[::-1],
                "This baseline answers the value of the last pair. A model with this score finds "
                "values, but does not look up the key.",
            ),
            self.said(
                "first_value",
                split,
                VALUES.findall,
                "This baseline answers the value of the first pair. A model with this score finds "
                "values, but does not look up the key.",
            ),
        ]
