"""Expressions with brackets, modulo 5.

An expression of 5 or more tokens is ( A operator B ), where all lengths of A are equally frequent;
shorter ones are d, -d, (d) and (-d) with a digit d.
"""

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from jaxtyping import UInt64

from lra.tasks.diagnostics.base import below
from lra.tasks.diagnostics.languages.language import Pairs
from lra.tasks.diagnostics.languages.regular import MODULUS

MINUS, OPEN, CLOSE, TIMES = 6, 7, 8, 9
OPERATORS = np.array((5, MINUS, TIMES))


def expressions(words: UInt64[np.ndarray, "n l"], operators: int) -> Pairs:
    """Return random expressions with brackets of the first `operators` of + - ×, and their values.

    The parts of all rows are expanded together, level by level. Parts begin at different places,
    so the word at its first place decides the length of the left part, or the digit. Places are
    counted over all rows.
    """
    number, length = words.shape
    tokens = np.empty(number * length, np.int64)
    values = np.zeros_like(tokens)
    """Of the part that begins at a place."""
    flat = words.ravel()
    start, size = length * np.arange(number), np.full(number, length)
    levels = []
    while len(start):
        leaf = size < 5
        _write_digits(tokens, values, flat, start[leaf], size[leaf])
        start, size = start[~leaf], size[~leaf]
        left = 1 + (flat[start] % (size - 4).astype(np.uint64)).astype(np.int64)
        middle = start + 1 + left
        operator = below(flat[middle], operators)
        tokens[start], tokens[start + size - 1] = OPEN, CLOSE
        tokens[middle] = OPERATORS[operator]
        levels.append((start, middle, operator))
        start = np.concatenate((start + 1, middle + 1))
        size = np.concatenate((left, size - left - 3))
    for start, middle, operator in reversed(levels):
        first, second = values[start + 1], values[middle + 1]
        results = (first + second, first - second, first * second)
        values[start] = np.choose(operator, results) % MODULUS
    return tokens.reshape(words.shape), values.reshape(words.shape)[:, :1]


def _write_digits(
    tokens: np.ndarray, values: np.ndarray, words: np.ndarray, start: np.ndarray, size: np.ndarray
) -> None:
    """Write d, -d, (d) or (-d), by their sizes 1 to 4, and their values."""
    digit = below(words[start], MODULUS)
    inside, negative = size >= 3, size % 2 == 0
    tokens[start[inside]] = OPEN
    tokens[(start + size - 1)[inside]] = CLOSE
    tokens[(start + inside)[negative]] = MINUS
    tokens[start + inside + negative] = digit
    values[start] = np.where(negative, -digit, digit) % MODULUS


@cache
def expression_counts(most: int, operators: int) -> Sequence[int]:
    """Return how many different expressions of each length up to `most` there are."""
    counts = [0]
    for length in range(1, most + 1):
        left = range(1, length - 3)
        pairs = sum(counts[size] * counts[length - 3 - size] for size in left)
        counts.append(operators * pairs if length >= 5 else MODULUS)
    return counts


def expression_bits(length: int, operators: int) -> float:
    """Return the binary logarithm of the number of different expressions of a length."""
    return math.log2(expression_counts(length, operators)[length])
