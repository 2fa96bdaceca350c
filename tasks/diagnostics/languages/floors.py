"""Answers that do not solve a language, or only look at a part of its input.

Each function takes tokens [n, l], where the places of answers have the id `empty`, and padding
other ids behind them. It returns answers that broadcast against the tokens.
"""

from collections.abc import Iterable

import numpy as np
from jaxtyping import Int

from lra.tasks.diagnostics.asked_rows import Guess
from lra.tasks.diagnostics.base import NOT_ASKED, Rows
from lra.tasks.diagnostics.languages.context_free import END
from lra.tasks.diagnostics.languages.strings import SORTED


def last_tokens(
    tokens: Int[np.ndarray, "n l"], empty: int, number: int
) -> Int[np.ndarray, "n {number}"]:
    """Return the last `number` tokens of each input, filled up with `empty` in front."""
    places = (tokens == empty).argmax(1)[:, None] + np.arange(-number, 0)
    found = np.take_along_axis(tokens, np.maximum(places, 0), axis=1)
    return np.where(places < 0, empty, found)


def first_and_last(empty: int) -> Guess:
    """Return the guess whether the first and the last token differ."""
    return lambda tokens: tokens[:, :1] ^ last_tokens(tokens, empty, 1)


def stack_is_empty(empty: int) -> Guess:
    """Return the guess that a stack is at its end everywhere."""
    del empty
    return lambda tokens: np.full((len(tokens), 1), END)


def by_place(empty: int) -> Guess:
    """Return the symbol that is most probable at each place of a sorted input, unread."""

    def guess(tokens: np.ndarray) -> np.ndarray:
        asked = tokens == empty
        place, number = asked.cumsum(1) - 1, asked.sum(1, keepdims=True)
        symbols: np.ndarray = SORTED * (2 * place + 1) // (2 * np.maximum(number, 1))
        return symbols

    return guess


def by_last_three(blocks: Iterable[Rows], empty: int) -> Guess:
    """Return the guess by the last three tokens of the input, fitted on rows with one answer."""
    factors = (empty + 1) ** np.arange(3)
    counts = np.zeros(((empty + 1) ** 3, empty), np.int64)
    for rows in blocks:
        answers = rows.answers.max(1, initial=NOT_ASKED)
        np.add.at(counts, (last_tokens(rows.tokens, empty, 3) @ factors, answers), 1)
    best = counts.argmax(1)
    return lambda tokens: best[last_tokens(tokens, empty, 3) @ factors][:, None]


FLOORS = {
    "even_pairs": (
        "two_tokens",
        first_and_last,
        "This baseline compares the first and the last token, which solves the task.",
    ),
    "stack": (
        "end",
        stack_is_empty,
        "This baseline always answers the end of the stack. A model with this score has learnt "
        "nothing of its content.",
    ),
    "bucket_sort": (
        "place",
        by_place,
        "This baseline answers by the place of an answer and the length, and reads no input. A "
        "model below it does worse than a count of tokens.",
    ),
}
"""Name, guess by the id of an empty place, and sentence of further baselines."""
