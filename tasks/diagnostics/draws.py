"""Rows of generated tasks, how random words become numbers, and rows of several lengths.

A few random 64-bit words decide a row completely, on every machine.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, UInt64

from lra.tasks.data.batching import Draw, random_words
from lra.tasks.data.storage import RaggedRows

NOT_ASKED = -1
BLOCK_ROWS = 1 << 10
BLOCK_NUMBERS = 1 << 22
"""Most tokens or random words that are in memory together."""
DIGEST_STREAM = (1 << 40) - 1
"""Stream of random words for hashes; rows use the streams 0, 1, … and never reach this one."""


class Rows(NamedTuple):
    """Examples, padded at the end if their lengths differ."""

    tokens: Int[np.ndarray, "n l"]
    """Behind the end of a row: 0."""
    answers: Int[np.ndarray, "n l"]
    """`NOT_ASKED` at positions without a question."""
    sizes: Int[np.ndarray, " n"] | None = None
    """Number of tokens of each row; None: all have l."""

    def real(self) -> np.ndarray:
        """Return which positions [n, l] are in a row."""
        length = self.tokens.shape[1]
        sizes = np.full(len(self.tokens), length) if self.sizes is None else self.sizes
        return np.arange(length) < sizes[:, None]

    def take(self, chosen: Int[np.ndarray, " m"]) -> "Rows":
        """Return some of the rows."""
        sizes = None if self.sizes is None else self.sizes[chosen]
        return Rows(self.tokens[chosen], self.answers[chosen], sizes)

    def stored(self, largest: int) -> RaggedRows:
        """Return the rows as examples of two sequences: tokens, and answers + 1 (0: not asked).

        `largest` is at least the largest id or answer, plus 1.
        """
        both = np.stack((self.tokens, self.answers - NOT_ASKED), axis=1)
        both = both.astype(np.min_scalar_type(largest))
        number, _, length = both.shape
        if self.sizes is None:
            flat, offsets = both.ravel(), length * np.arange(2 * number + 1)
        else:
            flat = both[np.broadcast_to(self.real()[:, None], both.shape)]
            offsets = np.concatenate(([0], np.repeat(self.sizes, 2).cumsum()))
        return RaggedRows(flat, offsets, np.zeros(number, np.uint8))


def rows_at_once(numbers: int) -> int:
    """Return how many rows are in memory together if each has `numbers` tokens or random words."""
    return max(1, min(BLOCK_ROWS, BLOCK_NUMBERS // numbers))


def first_seen(
    tokens: Int[np.ndarray, "n l"], hashes: set[int], most: int
) -> Int[np.ndarray, " m"]:
    """Return the indices of the first `most` rows that are new, and add their hashes to `hashes`.

    The hash of a row is the sum of its tokens times random factors, modulo 2^64. If two different
    rows have the same hash by chance, the second one is skipped.
    """
    # Factors are odd, so no bit of a token is lost.
    factors = random_words(Draw.diagnostic, DIGEST_STREAM, tokens.shape[1]) | np.uint64(1)
    digests = (tokens.astype(np.uint64) * factors).sum(1, dtype=np.uint64).tolist()
    new_rows: list[int] = []
    for row, digest in enumerate(digests):
        if len(new_rows) == most:
            break
        if digest not in hashes:
            hashes.add(digest)
            new_rows.append(row)
    return np.array(new_rows, np.int64)


def rows_of_lengths(
    words: UInt64[np.ndarray, "n w"],
    lengths: Int[np.ndarray, " c"],
    needs: Callable[[int], int],
    draw: Callable[[UInt64[np.ndarray, "n v"], int], Rows],
) -> Rows:
    """Return rows whose lengths the first random word of each draws from `lengths`.

    Args:
        words: Random words of each row; the second and later ones decide its content.
        lengths: The lengths to draw from.
        needs: Returns the number of random words of a row of a length.
        draw: Returns the rows of a length that random words decide.
    """
    drawn = lengths[below(words[:, 0], len(lengths))]
    groups = [(length, np.flatnonzero(drawn == length)) for length in np.unique(drawn).tolist()]
    found = [(index, draw(words[index, 1 : 1 + needs(n)], n)) for n, index in groups]
    longest = max(rows.tokens.shape[1] for _, rows in found)
    tokens = np.zeros((len(words), longest), np.int64)
    answers, sizes = np.full_like(tokens, NOT_ASKED), np.zeros(len(words), np.int64)
    for index, rows in found:
        width = rows.tokens.shape[1]
        tokens[index, :width], answers[index, :width] = rows.tokens, rows.answers
        sizes[index] = width if rows.sizes is None else rows.sizes
    return Rows(tokens, answers, sizes)


def below(words: UInt64[np.ndarray, "*n"], number: int) -> Int[np.ndarray, "*n"]:
    """Return a number from 0 to `number` - 1 for each random word."""
    return (words % np.uint64(number)).astype(np.int64)


def distinct(words: UInt64[np.ndarray, "n k"], of: int) -> Int[np.ndarray, "n k"]:
    """Return k different numbers below `of` in random order, for each row of random words.

    Draws one number after the other, and swaps it to the front of the pool (Fisher-Yates).
    """
    pool = np.tile(np.arange(of, dtype=np.min_scalar_type(of)), (len(words), 1))
    rows = np.arange(len(words))
    for index in range(words.shape[1]):
        other = index + below(words[:, index], of - index)
        taken = pool[rows, other]
        pool[rows, other] = pool[:, index]
        pool[:, index] = taken
    return pool[:, : words.shape[1]].astype(np.int64)


def unit(words: UInt64[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
    """Return a number in (0, 1] for each random word."""
    return ((words >> np.uint64(11)) + 1) * 2.0**-53


def random_orders(
    words: UInt64[np.ndarray, "n *p k"], number: Int[np.ndarray, " n"]
) -> Int[np.ndarray, "n *p k"]:
    """Return 0 … `number` - 1 in random order along the last axis, and then the other numbers."""
    last = np.arange(words.shape[-1]) >= number.reshape(-1, *[1] * (words.ndim - 1))
    return np.argsort(np.where(last, np.uint64(2**64 - 1), words >> np.uint64(1)), kind="stable")
