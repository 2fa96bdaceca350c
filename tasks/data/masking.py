"""The random choice of the tokens that a masked model must predict.

The choice for a row depends only on the seed and the row's index; the batch, the padding and the
number of ranks do not change it. Random words are those of SplitMix64 (Steele, Lea, Flood 2014), a
hash of a counter that starts from the row's index.
"""

import numpy as np
from jaxtyping import Bool, Int, UInt64

from lra.tasks.data.batching import Draw, random_words

STEP = np.uint64(0x9E3779B97F4A7C15)
LARGEST = np.uint64(2**64 - 1)


def draw_tokens(
    there: Bool[np.ndarray, "b l"], index: Int[np.ndarray, " b"], *, seed: int, share: float
) -> Bool[np.ndarray, "b l"]:
    """Return True at the drawn tokens: each with probability `share`, but at least one of each row.

    If a row would have none, its token with the smallest random word is taken.

    Args:
        there: True at the tokens that can be drawn, at least one in each row.
        index: Number of each row, which decides its draw.
        seed: Seed of all draws.
        share: Probability, between 0 and 1.
    """
    # Other tokens get the largest word, so none of them has the smallest word of its row.
    words = np.where(there, words_of(index, there.shape[1], seed=seed), LARGEST)
    drawn = words < np.uint64(round(share * 2**64))
    drawn[np.arange(len(words)), words.argmin(1)] = True
    return drawn


def words_of(
    index: Int[np.ndarray, " b"], length: int, *, seed: int, draw: Draw = Draw.masks
) -> UInt64[np.ndarray, "b l"]:
    """Return `length` random 64-bit words for each row, which depend on (draw, seed, index)."""
    first, second = random_words(draw, seed, 2)
    starts = _mix(first + index.astype(np.uint64) * STEP) ^ second
    return _mix(starts[:, None] + np.arange(1, length + 1, dtype=np.uint64) * STEP)


def _mix(words: UInt64[np.ndarray, "..."]) -> UInt64[np.ndarray, "..."]:
    """Return a hash of each 64-bit word: the last step of SplitMix64."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = words ^ (words >> np.uint64(31))
    return mixed
