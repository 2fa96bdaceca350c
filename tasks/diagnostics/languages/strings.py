"""Context-sensitive languages whose answers are the symbols of the input in another order.

    missing_duplicate   1 0 1 1 ? 1     0              the hidden symbol of a string read twice
    duplicate           0 0 1           0 0 1 0 0 1    the input twice
    odds_first          a b c d e       b d a c e      second, fourth, …, then first, third, …
    bucket_sort         3 1 4 1         1 1 3 4        the input in order

All symbols are equally frequent, and so are the places of the hidden one.
"""

import math

import numpy as np
from jaxtyping import UInt64

from lra.tasks.diagnostics.base import below
from lra.tasks.diagnostics.languages.language import FormalLanguage, Pairs
from lra.tasks.diagnostics.languages.regular import DIGITS

HOLE, FILLER = 2, 3
SORTED = len(DIGITS)


def missing_duplicate(words: UInt64[np.ndarray, "n w"], length: int) -> Pairs:
    """Return a string of bits twice with one symbol hidden, and this symbol.

    An odd length has a filler at the end.
    """
    bits = below(words[:, :-1], 2)
    tokens = np.hstack((bits, bits))
    place = below(words[:, -1:], tokens.shape[1])
    answers = np.take_along_axis(tokens, place, axis=1)
    np.put_along_axis(tokens, place, HOLE, axis=1)
    filler = np.full((len(words), length % 2), FILLER)
    return np.hstack((tokens, filler)), answers


def duplicate(words: UInt64[np.ndarray, "n l"], length: int) -> Pairs:
    """Return random bits, and the same twice."""
    del length
    bits = below(words, 2)
    return bits, np.hstack((bits, bits))


def odds_first(words: UInt64[np.ndarray, "n l"], length: int) -> Pairs:
    """Return random bits, and every second one of them, then the others."""
    del length
    bits = below(words, 2)
    return bits, np.hstack((bits[:, 1::2], bits[:, ::2]))


def bucket_sort(words: UInt64[np.ndarray, "n l"], length: int) -> Pairs:
    """Return random symbols of five, and the same in order."""
    del length
    tokens = below(words, SORTED)
    return tokens, np.sort(tokens, axis=1)


STRINGS = {
    "missing_duplicate": FormalLanguage(
        "01?.",
        0.5,
        missing_duplicate,
        lambda length: length // 2 + math.log2(length // 2 * 2),
        words=lambda length: length // 2 + 1,
        allowed=lambda length: max(2, length),
        lengths="lengths from 2 on",
    ),
    "duplicate": FormalLanguage("01", 0.5, duplicate, float, places=lambda length: 2 * length),
    "odds_first": FormalLanguage("01", 0.5, odds_first, float, places=int),
    "bucket_sort": FormalLanguage(
        DIGITS, 0.2, bucket_sort, lambda length: length * math.log2(SORTED), places=int
    ),
}
