"""Copying of strings (Jelassi et al., arXiv:2402.01032).

    c a f a b | c a f a        letters, a separator, and the letters again
    . . . . . c a f a b        the answer is the next letter of the copy

    c a f a b | a f a |        lookup=prefix prefix_letters=2: some letters of the string
    . . . . . . . a b .        the answers are the letters that follow them, to the end

`length` is the number of letters of the string. With `lookup=prefix`, each place that a letter
follows is equally frequent; if the same letters stand earlier too, the letters that follow there
are the answers. The paper trains on up to 50 letters and tests on up to 1,000. Attention can find
where the last letters stood; a state of fixed size has to store the whole string.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import ClassVar

import numpy as np
from jaxtyping import Int, UInt64

from lra.conf.choices import by_name
from lra.tasks.diagnostics.base import NOT_ASKED, DiagnosticTask, Rows, below
from lra.tasks.task import Baseline, Batch
from lra.tasks.tensors import Tensor


class Lookup(StrEnum):
    """What is copied: the whole string, or what follows some of its letters."""

    whole = auto()
    prefix = auto()


@by_name
@dataclass(kw_only=True, eq=False)
class CopyString(DiagnosticTask):
    """Copy a string, or the part of it that follows some of its letters."""

    name: ClassVar[str] = "copy_string"

    length: int = 50
    min_length: int | None = 1
    letters: int = 26
    """Number of different letters; the separator is a further token id."""
    lookup: Lookup = Lookup.whole
    """What is copied: whole (the string), or prefix (what follows some of its letters)."""
    prefix_letters: int = 3
    """Number of these letters, with lookup=prefix."""
    train_examples: int | None = None

    def __post_init__(self) -> None:
        """Check the options."""
        copied = "" if self.lookup is Lookup.whole else f" from {self.prefix_letters} of them on"
        self.generated_as(
            vocabulary=self.letters + 1, difficulty=f"strings of {self.letters} letters{copied}"
        )
        if self.lookup is Lookup.prefix:
            self.least(1 + self.prefix_letters, "the looked-up letters, and one letter after them")

    def row_size(self, length: int) -> int:
        """Return the number of tokens of a string, the separator, and the copy without its end."""
        return 2 * length

    def words(self, length: int) -> int:
        """Return the number of random words for a row: of each letter, and of the place."""
        return length + (self.lookup is Lookup.prefix)

    def drawn(self, words: UInt64[np.ndarray, "n w"], length: int) -> Rows:
        """Return the rows that these random words decide."""
        string = below(words[:, :length], self.letters)
        rows = np.full((len(words), 2 * length), self.letters)
        answers = np.full_like(rows, NOT_ASKED)
        rows[:, :length] = string
        if self.lookup is Lookup.whole:
            rows[:, length + 1 :], answers[:, length:] = string[:, :-1], string
            return Rows(rows, answers)
        size = self.prefix_letters
        prefixes = np.lib.stride_tricks.sliding_window_view(string[:, :-1], size, axis=1)
        place = below(words[:, length:], length - size)[:, :, None]
        same = (prefixes == np.take_along_axis(prefixes, place, axis=1)).all(2)
        # After the separator, the row has the string from the first such place on.
        source = same.argmax(1)[:, None] + np.arange(length)
        rest = np.take_along_axis(string, np.minimum(source, length - 1), axis=1)
        rows[:, length + 1 :] = np.where(source < length - 1, rest, self.letters)[:, :-1]
        answers[:, length + size :] = np.where(source < length, rest, NOT_ASKED)[:, size:]
        return Rows(rows, answers)

    def different_rows(self, length: int) -> float:
        """Return the binary logarithm of the number of different strings."""
        return length * math.log2(self.letters)

    def token_text(self, token: int) -> str:
        """Return a, b, … for up to 26 letters, otherwise numbers, and | for the separator."""
        if token == self.letters:
            return "|"
        return chr(ord("a") + token) if self.letters <= 26 else str(token)

    def groups(self, batch: Batch) -> Mapping[str, Int[Tensor, "b l"]]:
        """Return the length of the string for each position of a batch."""
        return {name: number // 2 for name, number in super().groups(batch).items()}

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the baselines of all diagnostics, and a search for one letter, on `split`."""

        def follower(tokens: np.ndarray) -> np.ndarray:
            """Return what follows the first letter that is equal, at each position."""
            border = (tokens == self.letters).argmax(1)
            following = np.repeat(tokens[:, :1], self.letters + 1, axis=1)
            for place in reversed(range(border.max())):
                rows = np.flatnonzero(place < border)
                following[rows, tokens[rows, place]] = tokens[rows, place + 1]
            return np.take_along_axis(following, tokens, axis=1)

        return [
            *super().baselines(split),
            self.baseline(
                "one_letter",
                split,
                follower,
                "This baseline answers what follows the first letter that is equal to the last "
                "one. A model with this score finds a letter, but not its place.",
            ),
        ]
