"""Context-sensitive languages that compute with binary numbers.

    addition         1 1 + 0 1     1 0 1 end     3 + 2, lowest bit first
    multiplication   1 1 × 0 1     0 1 1 end     3 · 2, lowest bit first
    sqrt             1 0 0 1 1     1 0 0         root of 19, rounded down, highest bit first

Numbers are uniform from 1 on. The first number of a sum or product has each length equally often.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Int, UInt64

from lra.tasks.diagnostics.base import below
from lra.tasks.diagnostics.languages.language import FormalLanguage, Pairs, until_end

OPERATOR, END = 2, 3


def addition(words: UInt64[np.ndarray, "n w"], length: int) -> Pairs:
    """Return two binary numbers with + between them, and their sum with its end."""
    return _computed(words, length, length + 1, int.__add__)


def multiplication(words: UInt64[np.ndarray, "n w"], length: int) -> Pairs:
    """Return two binary numbers with × between them, and their product with its end."""
    return _computed(words, length, length, int.__mul__)


def _computed(
    words: UInt64[np.ndarray, "n w"], length: int, places: int, compute: Callable[[int, int], int]
) -> Pairs:
    """Return two binary numbers with an operator between them, and the result with its end."""
    first = 1 + below(words[:, -1], length - 2)
    for_first, for_second = np.split(words[:, :-1], 2, axis=1)
    numbers = uniform_numbers(for_first, first)
    others = uniform_numbers(for_second, length - 1 - first)
    place = np.arange(length) - first[:, None]
    behind = np.take_along_axis(binary(others, length), np.maximum(place - 1, 0), axis=1)
    tokens = np.where(place < 0, binary(numbers, length), np.where(place, behind, OPERATOR))
    results = [*map(compute, numbers, others)]
    sizes = np.array([result.bit_length() for result in results])
    return tokens, until_end(binary(results, places), sizes, END)


def sqrt(words: UInt64[np.ndarray, "n w"], length: int) -> Pairs:
    """Return binary numbers, and their square roots rounded down."""
    numbers = uniform_numbers(words, np.full(len(words), length))
    roots = [*map(math.isqrt, numbers)]
    return binary(numbers, length)[:, ::-1], binary(roots, half(length))[:, ::-1]


def uniform_numbers(
    words: UInt64[np.ndarray, "n w"], sizes: Int[np.ndarray, " n"]
) -> Sequence[int]:
    """Return a number from 1 to 2^size - 1 for each row of words.

    A remainder of a random number with 64 more bits is uniform to within 2^-64.
    """
    raw, step = words.astype("<u8").tobytes(), 8 * words.shape[1]
    return [
        1 + int.from_bytes(raw[step * row : step * (row + 1)], "little") % ((1 << size) - 1)
        for row, size in enumerate(sizes.tolist())
    ]


def binary(numbers: Sequence[int], width: int) -> Int[np.ndarray, "n {width}"]:
    """Return the bits of each number, the lowest first."""
    step = -(-width // 8)
    raw = b"".join(number.to_bytes(step, "little") for number in numbers)
    packed = np.frombuffer(raw, np.uint8).reshape(len(numbers), step)
    return np.unpackbits(packed, axis=1, count=width, bitorder="little").astype(np.int64)


def half(length: int) -> int:
    """Return half of a length, rounded up."""
    return -(-length // 2)


def words_of_number(length: int) -> int:
    """Return how many random words decide a binary number of at most `length` bits."""
    return length // 64 + 2


_SUM = FormalLanguage(
    ("0", "1", "+", "end"),
    0.5,
    addition,
    lambda length: length - 3.0,  # as many as for each split of the bits, less those with a zero
    words=lambda length: 2 * words_of_number(length) + 1,
    places=lambda length: length + 1,
    allowed=lambda length: max(3, length),
    lengths="lengths from 3 on",
)
BINARY_NUMBERS = {
    "addition": _SUM,
    "multiplication": _SUM._replace(
        symbols=("0", "1", "×", "end"), draw=multiplication, places=int
    ),
    "sqrt": FormalLanguage(
        "01", 0.5, sqrt, lambda length: length - 1.0, words=words_of_number, places=half
    ),
}
