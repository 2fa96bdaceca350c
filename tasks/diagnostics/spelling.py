"""Words of one or more tokens: how they are written into rows, and judged as a whole."""

import numpy as np
from jaxtyping import Bool, Float, Int

from lra.tasks.diagnostics.draws import NOT_ASKED, Rows


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
