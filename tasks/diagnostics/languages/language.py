"""What a formal language consists of, and arrays that languages share."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Int, UInt64

from lra.tasks.diagnostics.base import NOT_ASKED

Pairs: TypeAlias = tuple[Int[np.ndarray, "n l"], Int[np.ndarray, "n m"]]
"""Inputs, and the answers to each; `NOT_ASKED` behind the last answer."""


class FormalLanguage(NamedTuple):
    """A language: how inputs of a length are drawn, and what the answers are."""

    symbols: Sequence[str]
    """The symbols of inputs and answers as text, by id."""
    chance: float
    """Accuracy of a guess among the answers that are possible."""
    draw: Callable[[UInt64[np.ndarray, "n w"], int], Pairs]
    """Returns the inputs of a length that the random words decide, and their answers."""
    bits: Callable[[int], float]
    """Lower bound of the binary logarithm of the number of different inputs of a length."""
    words: Callable[[int], int] = lambda length: length
    """Number of random words that decide an input of a length."""
    places: Callable[[int], int] = lambda _: 1
    """Number of answers to an input of a length, the end and what is behind it included."""
    allowed: Callable[[int], int] = lambda length: length
    """The next length, from this one on, of which there are inputs."""
    lengths: str = ""
    """The lengths of which there are inputs in words, unless there are of all."""


def until_end(
    answers: Int[np.ndarray, "n m"], sizes: Int[np.ndarray, " n"], end: int
) -> Int[np.ndarray, "n m"]:
    """Return the first `sizes` answers of each row, then `end`, then `NOT_ASKED`."""
    place = np.arange(answers.shape[1]) - sizes[:, None]
    return np.where(place < 0, answers, np.where(place == 0, end, NOT_ASKED))
