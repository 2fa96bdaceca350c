"""Words of one or more tokens: how they are written into rows, and judged as a whole."""

import numpy as np
from jaxtyping import Bool, Float, Int, UInt64

from lra.tasks.diagnostics.draws import NOT_ASKED, Rows, unit

MOST_WORDS = 1 << 14
"""Most different words; each one takes a random number in each row."""


def word_rates(symbols: int, sizes: range, nodes: int) -> Float[np.ndarray, " w"]:
    """Return how probable each word is, in proportion, if all `sizes` are equally probable.

    Raises:
        ValueError: There is no size, or fewer words than `nodes`, or too many.
    """
    if not sizes:
        raise ValueError(
            f"task.least_tokens must be at most task.most_tokens={sizes.stop - 1}: got "
            f"{sizes.start}"
        )
    numbers = [symbols**size for size in sizes]
    if not 3 <= nodes <= sum(numbers) <= MOST_WORDS:
        raise ValueError(
            "task.nodes must be from 3 to the number of different words, which may be at most "
            f"{MOST_WORDS}: got task.nodes={nodes}, and {sum(numbers)} words of {sizes[0]} to "
            f"{sizes[-1]} tokens of {symbols} symbols"
        )
    return np.repeat(1 / np.array(numbers), numbers)


def different_words(
    words: UInt64[np.ndarray, "n w"], rates: Float[np.ndarray, " w"]
) -> Int[np.ndarray, "n w"]:
    """Return all words in random order, as if drawn one after the other, without the earlier ones.

    Smaller random times come first.
    """
    return np.argsort(-np.log(unit(words)) / rates, axis=1)


def graph_sizes(
    words: UInt64[np.ndarray, "n 1"], nodes: int, sizes: Int[np.ndarray, " s"]
) -> Int[np.ndarray, "n 1"]:
    """Return one of `sizes` for each random word, n with the weight 1 / (n + sqrt(nodes))."""
    shares = np.cumsum(1 / (sizes + nodes**0.5))
    chosen: Int[np.ndarray, "n 1"] = sizes[np.searchsorted(shares[:-1], shares[-1] * unit(words))]
    return chosen


def spellings(symbols: int, sizes: range, *, marks: int) -> Int[np.ndarray, "w t"]:
    """Return the tokens of all words of `sizes` tokens, and of marks; behind the end `NOT_ASKED`.

    The last token of a word is its symbol plus `symbols`; marks of one token follow these ids.
    """
    parts = [symbols * 2 + np.arange(marks)[:, None]]
    for size in reversed(sizes):
        digits = np.arange(symbols**size)[:, None] // symbols ** np.arange(size) % symbols
        digits[:, -1] += symbols
        parts.insert(0, digits)
    width = sizes[-1]
    return np.concatenate(
        [
            np.pad(part, ((0, 0), (0, width - part.shape[1])), constant_values=NOT_ASKED)
            for part in parts
        ]
    )


def rows_of_words(
    pieces: Int[np.ndarray, "n p"],
    real: Bool[np.ndarray, "n p"],
    answers: Bool[np.ndarray, " p"],
    *,
    spelling: Int[np.ndarray, "w t"],
    length: int,
) -> Rows:
    """Return rows of words and marks one after the other.

    Args:
        pieces: Number of each word or mark.
        real: Whether a row has this piece.
        answers: Which pieces are answers; each token is asked for at the token in front of it.
        spelling: Tokens of each piece; behind its end `NOT_ASKED`.
        length: Number of tokens of the longest row.
    """
    sizes = np.where(real, (spelling != NOT_ASKED).sum(1)[pieces], 0)
    first = sizes.cumsum(1) - sizes
    tokens, asked = np.zeros((2, len(pieces), length), np.int64)
    asked[:] = NOT_ASKED
    for place in range(spelling.shape[1]):
        row, piece = np.nonzero(sizes > place)
        token, target = spelling[pieces[row, piece], place], first[row, piece] + place
        tokens[row, target] = token
        chosen = answers[piece]
        asked[row[chosen], target[chosen] - 1] = token[chosen]
    return Rows(tokens, asked, sizes.sum(1))


def by_word(
    hit: Bool[np.ndarray, "n l"], asked: Bool[np.ndarray, "n l"]
) -> tuple[Bool[np.ndarray, "n l"], Float[np.ndarray, "n l"]]:
    """Return whether the whole word is correct at each asked position, and weights, 1 for a word.

    Asked positions next to each other are a word; between two words there is another position.
    """
    word = (asked & ~np.roll(asked, 1, axis=1)).ravel().cumsum()[asked.ravel()] - 1
    sizes = np.bincount(word)
    right, weight = np.zeros_like(asked), np.zeros(asked.shape)
    right[asked] = (np.bincount(word, weights=hit[asked]) == sizes)[word]
    weight[asked] = 1 / sizes[word]
    return right, weight
