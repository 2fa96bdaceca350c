"""Regular languages: a finite automaton gives the answer, one number.

even_pairs   0 1 1 0       0      is the number of 01 and 10 odd?
parity       1 0 1 1       1      is the number of 1 odd?
modular      3 - 2 × 4     0      the value modulo 5; × binds more tightly
cycle        + + - + .     2      the place on a circle of 5 after steps of 1, -1 and 0

All symbols are equally frequent, at places where they may stand.
"""

import math

import numpy as np
from jaxtyping import UInt64

from lra.tasks.diagnostics.base import below
from lra.tasks.diagnostics.languages.language import FormalLanguage, Pairs

MODULUS = 5
DIGITS = tuple("01234")
MINUS, TIMES = 6, 7


def even_pairs(words: UInt64[np.ndarray, "n l"], length: int) -> Pairs:
    """Return random bits and whether 01 and 10 together are odd: whether first and last differ."""
    del length
    bits = below(words, 2)
    return bits, bits[:, :1] ^ bits[:, -1:]


def parity(words: UInt64[np.ndarray, "n l"], length: int) -> Pairs:
    """Return random bits and their sum modulo 2."""
    del length
    bits = below(words, 2)
    return bits, bits.sum(1, keepdims=True) % 2


def modular(words: UInt64[np.ndarray, "n l"], length: int) -> Pairs:
    """Return digits with +, - and × between them, and the value modulo 5."""
    tokens = below(words, MODULUS)
    tokens[:, 1::2] = MODULUS + below(words[:, 1::2], 3)
    # The value so far is total + sign * product: the product ends at the next + or -.
    sign, product = np.ones(len(words), np.int64), tokens[:, 0]
    total = np.zeros_like(sign)
    for place in range(1, length, 2):
        operator, digit = tokens[:, place], tokens[:, place + 1]
        times = operator == TIMES
        total = np.where(times, total, total + sign * product)
        sign = np.where(times, sign, 1 - 2 * (operator == MINUS))
        product = np.where(times, product * digit, digit) % MODULUS
    return tokens, ((total + sign * product) % MODULUS)[:, None]


def cycle(words: UInt64[np.ndarray, "n l"], length: int) -> Pairs:
    """Return steps of -1, 0 and 1 on a circle of 5 places, and the last place."""
    del length
    steps = below(words, 3)
    return MODULUS + steps, (steps - 1).sum(1, keepdims=True) % MODULUS


REGULAR = {
    "even_pairs": FormalLanguage("01", 0.5, even_pairs, float),
    "parity": FormalLanguage("01", 0.5, parity, float),
    "modular": FormalLanguage(
        (*DIGITS, *"+-×"),
        0.2,
        modular,
        lambda length: length // 2 * math.log2(3 * MODULUS) + math.log2(MODULUS),
        allowed=lambda length: length + 1 - length % 2,
        lengths="odd lengths",
    ),
    "cycle": FormalLanguage((*DIGITS, *"-.+"), 0.2, cycle, lambda length: length * math.log2(3)),
}
