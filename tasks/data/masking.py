"""Which tokens a masked model has to answer: drawn for each row by itself.

A row's draw depends on (seed, its index) alone: not on the batch it stands in, its padding, or the
number of ranks. Words come from SplitMix64 (Steele, Lea, Flood 2014), a hash of a counter, started
from the row.
"""

import numpy as np
from jaxtyping import Bool, Int, UInt64

from lra.tasks.data.batching import Draw, random_words

STEP = np.uint64(0x9E3779B97F4A7C15)
LARGEST = np.uint64(2**64 - 1)


def draw_tokens(
    there: Bool[np.ndarray, "b l"], index: Int[np.ndarray, " b"], *, seed: int, share: float
) -> Bool[np.ndarray, "b l"]:
    """Return which tokens are drawn: each with probability `share`, and one of a row at least.

    Where a row's draw leaves all out, the token that came nearest is taken.

    Args:
        there: Which tokens can be drawn; one of each row at least.
        index: What tells the rows apart.
        seed: Of all draws.
        share: Between 0 and 1.
    """
    words = np.where(there, words_of(index, there.shape[1], seed=seed), LARGEST)
    drawn = words < np.uint64(round(share * 2**64))
    drawn[np.arange(len(words)), words.argmin(1)] = True
    return drawn


def words_of(
    index: Int[np.ndarray, " b"], length: int, *, seed: int, draw: Draw = Draw.masks
) -> UInt64[np.ndarray, "b l"]:
    """Return uniform words: the first `length` of each row's stream."""
    first, second = random_words(draw, seed, 2)
    starts = _mixed(first + index.astype(np.uint64) * STEP) ^ second
    return _mixed(starts[:, None] + np.arange(1, length + 1, dtype=np.uint64) * STEP)


def _mixed(words: UInt64[np.ndarray, "..."]) -> UInt64[np.ndarray, "..."]:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = words ^ (words >> np.uint64(31))
    return mixed
