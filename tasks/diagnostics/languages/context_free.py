"""Deterministic context-free languages: a stack is needed.

    brackets   ( ( 2 × ( 3 - 4 ) ) + 1 )   4          the value modulo 5
    equation   ( x + 3 ) = 1               3          the hidden digit x, modulo 5
    stack      1 0 push1 pop pop           1 end      the stack from its top, after the actions
    reverse    0 0 1                       1 0 0      the input backwards

Equations have no ×, because x would not always be unique.
"""

import math

import numpy as np
from jaxtyping import UInt64

from lra.tasks.diagnostics.base import below
from lra.tasks.diagnostics.languages.expressions import expression_bits, expressions
from lra.tasks.diagnostics.languages.language import FormalLanguage, Pairs, until_end
from lra.tasks.diagnostics.languages.regular import DIGITS, MODULUS

UNKNOWN, EQUALS = 9, 10
POP, END = 2, 5


def brackets(words: UInt64[np.ndarray, "n l"], length: int) -> Pairs:
    """Return expressions of + - ×, and their values."""
    del length
    return expressions(words, 3)


def sums_in_brackets(words: UInt64[np.ndarray, "n l"], length: int) -> Pairs:
    """Return expressions of + and -, and their values."""
    del length
    return expressions(words, 2)


def equation(words: UInt64[np.ndarray, "n l"], length: int) -> Pairs:
    """Return equations of + and - with a hidden digit, and the digit.

    A random place is drawn; the first digit from there on is hidden, from the first place on if
    there is none.
    """
    size = length - 2
    tokens, values = expressions(words[:, :size], 2)
    distance = (np.arange(size) - below(words[:, size:-1], size)) % size
    place = np.where(tokens < MODULUS, distance, size).argmin(1)[:, None]
    answers = np.take_along_axis(tokens, place, axis=1)
    np.put_along_axis(tokens, place, UNKNOWN, axis=1)
    return np.hstack((tokens, np.full_like(values, EQUALS), values)), answers


def stack(words: UInt64[np.ndarray, "n w"], length: int) -> Pairs:
    """Return a stack from its bottom, and actions; the answer is the last stack from its top.

    All lengths of the first stack are equally frequent. `pop` leaves an empty stack as it is.
    """
    first = 1 + below(words[:, -1:], max(1, length - 1))
    draws = (words[:, :-1] % np.uint64(6)).astype(np.int8)  # % 2 a bit, % 3 an action
    tokens = np.where(np.arange(length) < first, draws % 2, POP + draws % 3)
    pops = tokens == POP
    height = np.where(pops, -1, 1).cumsum(1)
    height -= np.minimum.accumulate(np.minimum(height, 0), axis=1)
    # Of several symbols at one height the last one stays; `pop` writes where nobody reads.
    content = np.zeros((len(words), length + 1), np.int8)
    np.put_along_axis(content, np.where(pops, length, height - 1), tokens % 3, axis=1)
    last = height[:, -1]
    place = np.maximum(last[:, None] - 1 - np.arange(length + 1), 0)
    answers = until_end(np.take_along_axis(content, place, axis=1), last, END)
    return tokens.astype(np.int64), answers


def reverse(words: UInt64[np.ndarray, "n l"], length: int) -> Pairs:
    """Return random bits, and the same backwards."""
    del length
    bits = below(words, 2)
    return bits, bits[:, ::-1]


CONTEXT_FREE = {
    "brackets": FormalLanguage(
        (*DIGITS, *"+-()×"), 0.2, brackets, lambda length: expression_bits(length, 3)
    ),
    "equation": FormalLanguage(
        (*DIGITS, *"+-()x="),
        0.2,
        equation,
        lambda length: expression_bits(length - 2, 2),
        allowed=lambda length: max(3, length),
        lengths="lengths from 3 on",
    ),
    "stack": FormalLanguage(
        ("0", "1", "pop", "push0", "push1", "end"),
        0.5,
        stack,
        lambda length: 1 + (length - 1) * math.log2(3),
        words=lambda length: length + 1,
        places=lambda length: length + 1,
    ),
    "reverse": FormalLanguage("01", 0.5, reverse, float, places=int),
}
SUMS_IN_BRACKETS = CONTEXT_FREE["brackets"]._replace(
    draw=sums_in_brackets, bits=lambda length: expression_bits(length, 2)
)
