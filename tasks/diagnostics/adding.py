"""The adding problem (Hochreiter & Schmidhuber 1997): the sum of two marked numbers.

    numbers   .31 .87 .02 .55 .90 .14 .66 .73      uniform in [0, 1)
    markers     0   1   0   0   0   0   1   0      one in each half of the row
    answer                              .87 + .66 = 1.53

A token has two channels, number and marker, and the answer is one real number, judged by its
squared error. Always answering 1 has 1/6, reading the second marked number alone 1/12, and papers
call the problem solved below `SOLVED`. A model must carry one number over many tokens and ignore
the others; it looks nothing up by content.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float32, UInt64

from lra.conf.choices import by_name
from lra.tasks.diagnostics.draws import below
from lra.tasks.diagnostics.number_rows import NumberRows, error_of
from lra.tasks.task import Baseline

SOLVED = 0.01
"""A mean squared error."""
NUMBER_BITS = 24
"""Random bits of a number, which float32 stores exactly."""


@by_name
@dataclass(kw_only=True, eq=False)
class Adding(NumberRows):
    """Add the two marked numbers of a row."""

    name: ClassVar[str] = "adding"

    def __post_init__(self) -> None:
        """Check the options."""
        because = "each half of a row has a marked number"
        self.numbers_of(2, least=2, because=because, options={})

    def words(self, length: int) -> int:
        """Return the number of random words for a row: one for each number, two for markers."""
        return length + 2

    def drawn(
        self, words: UInt64[np.ndarray, "n w"], length: int
    ) -> tuple[Float32[np.ndarray, "n l 2"], Float32[np.ndarray, " n"]]:
        """Return the rows that these random words decide, and their answers."""
        del length
        return adding_rows(words)

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the errors of answers that need no memory."""
        answers, tokens = self.split(split).targets, self.rows(split)
        half = tokens.shape[1] // 2
        second = tokens[:, half:].prod(-1).sum(1)  # the marked number of the second half
        return [
            error_of("always_one", answers - 1, "This baseline always answers 1, the mean of all "
                     "answers. A model with this error has learnt nothing."),
            error_of("second_marker", answers - second - 0.5, "This baseline adds 0.5 to the "
                     "second marked number. A model with this error remembers nothing."),
        ]  # fmt: skip

    def describe(self, split: str, index: int) -> str:
        """Return a row as two lines of text, numbers above markers, and its answer."""
        numbers, markers = self.rows(split)[index].T
        above = " ".join(f"{number:.3f}" for number in numbers)
        below_it = " ".join("  *  " if marked else "     " for marked in markers).rstrip()
        return f"{above}\n{below_it}\n-> {self.split(split).targets[index]:.3f}"


def adding_rows(
    words: UInt64[np.ndarray, "n w"],
) -> tuple[Float32[np.ndarray, "n l 2"], Float32[np.ndarray, " n"]]:
    """Return rows of l = w - 2 tokens and their answers; the last two words place the markers."""
    number, length = len(words), words.shape[1] - 2
    tokens = np.zeros((number, length, 2), np.float32)
    tokens[..., 0] = (words[:, :length] >> np.uint64(64 - NUMBER_BITS)) * 2.0**-NUMBER_BITS
    half, rows = length // 2, np.arange(number)
    first, second = below(words[:, -2], half), half + below(words[:, -1], length - half)
    tokens[rows, first, 1] = tokens[rows, second, 1] = 1
    return tokens, tokens[rows, first, 0] + tokens[rows, second, 0]
