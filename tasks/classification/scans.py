"""Orders in which a model reads the pixels of a square picture of s x s pixels.

    rows      0 1 2 3    columns  0 4  8 12    snake   0  1  2  3    hilbert   0  3  4  5
              4 5 6 7             1 5  9 13            7  6  5  4              1  2  7  6
              8 9 …               2 6 10 14            8  9 10 11             14 13  8  9
                                  3 7 …               15 14 13 12             15 12 11 10

An entry is the position in the sequence. Snake and Hilbert's curve only step to neighbours. Bit
reversal reads the pixels, numbered row by row, in the order of their reversed binary digits: for 8
pixels 0 4 2 6 1 5 3 7. If their number is no power of two, the next one is reversed, and numbers
without a pixel are left out, as in S4 (arXiv:2111.00396). `rows_and_columns` reads two pixels at
once: the channels of a token are those of the next pixel by rows, and of the next one by columns,
as with the option `transpose` of S4's code.
"""

from enum import StrEnum, auto

import numpy as np
from jaxtyping import Int


class Scan(StrEnum):
    """The order in which a model reads pixels."""

    rows = auto()
    columns = auto()
    snake = auto()
    hilbert = auto()
    bit_reversal = auto()
    rows_and_columns = auto()
    """Both orders at once, as channels of one token."""


class Shuffle(StrEnum):
    """The permutation of permuted pictures."""

    random = auto()
    """Drawn once from `permutation_seed`."""
    bit_reversal = auto()
    """Fixed; see `Scan.bit_reversal`."""


def scan_orders(scan: Scan, side: int) -> list[Int[np.ndarray, " p"]]:
    """Return the order of the pixels of a token: one, or those of `rows_and_columns`."""
    both = [Scan.rows, Scan.columns] if scan is Scan.rows_and_columns else [scan]
    return [scan_order(each, side) for each in both]


def scan_order(scan: Scan, side: int) -> Int[np.ndarray, " p"]:
    """Return the number of the pixel, counted row by row, at each position of the sequence.

    For `rows_and_columns`, it is the order of the first pixel of each token.

    Raises:
        ValueError: Hilbert's curve does not fill a square of this side.
    """
    numbers = np.arange(side**2).reshape(side, side)
    if scan is Scan.columns:
        return numbers.T.ravel()
    if scan is Scan.snake:
        numbers[1::2] = numbers[1::2, ::-1].copy()
    if scan is Scan.hilbert:
        return _hilbert(side)
    return _reversed_bits(side**2) if scan is Scan.bit_reversal else numbers.ravel()


def _reversed_bits(number: int) -> Int[np.ndarray, " n"]:
    """Return 0 … number - 1 in the order of their reversed binary digits."""
    order = np.zeros(1, np.int64)
    while len(order) < number:  # with one more digit at the end, which is the first reversed one
        order = np.concatenate((2 * order, 2 * order + 1))
    return order[order < number]


def _hilbert(side: int) -> Int[np.ndarray, " p"]:
    """Return the pixels along Hilbert's curve, which joins four smaller curves."""
    if side & (side - 1):
        raise ValueError(
            f"task.scan=hilbert needs pictures whose side is a power of two: got {side} pixels; "
            "choose another scan, for example snake"
        )
    row, column = np.zeros(1, np.int64), np.zeros(1, np.int64)
    while (size := 2 * round(len(row) ** 0.5)) <= side:
        half, last = size // 2, size - 1
        row, column = (
            np.concatenate((column, row, row + half, last - column)),
            np.concatenate((row, column + half, column + half, half - 1 - row)),
        )
    return row * side + column
