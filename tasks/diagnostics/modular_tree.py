"""Arithmetic on trees, modulo a prime (Mano in Allen-Zhu, arXiv:2512.17351).

    begin  len2  *  3  +  4  4  ?      operators stand in front of their two parts
    .      .     .  .  .  .  .  4      3 * (4 + 4) modulo 5

A row has 1 to `operators` operators in training, and `operators` in a test. The left part of an
operator over n others has 0 to n of them, all numbers equally probable, and the right part has the
rest. The context gives nothing but the question: a model must know the tables of +, - and *, and
apply them from the leaves to the root. Each operator and mark has two ids; a row has a random one.

The paper uses `modulus` 23 and `operators` 10, 13 or 16, and its loss counts all tokens
(`loss=all`). Its code also has division (`division=true`): an expression that divides by zero is
drawn again, with as many operators. Zero is the most frequent answer, because a product with a zero
is zero: at modulus 23 and 10 operators without division, 7.0 % of the answers.

This task shows how deep a computation is within one pass through a model. It cannot show a memory
of the context, because the questions are short.
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np
from jaxtyping import Int, UInt64

from lra.conf.choices import by_name
from lra.tasks.data.batching import Draw, random_words
from lra.tasks.diagnostics.base import NOT_ASKED, Rows, below
from lra.tasks.diagnostics.derived_length import DerivedLengthTask
from lra.tasks.task import Baseline, Batch
from lra.tasks.tensors import Tensor

FORMS = 2
"""Number of ids of each operator and of each mark."""
SIGNS, DIVISION = "+-*", "/"
UNDEFINED = -1
"""The value of an expression that divides by zero."""
LEAST_DEFINED = 0.01
"""Fewer defined expressions than about this fraction are refused: drawing takes too long."""
MARK = "'"
"""What stands in front of the second form of an operator or mark in texts."""


@by_name
@dataclass(kw_only=True, eq=False)
class ModularTree(DerivedLengthTask):
    """Evaluate an expression of sums, differences, products (and quotients) modulo a number."""

    name: ClassVar[str] = "modular_tree"
    later: ClassVar[frozenset[str]] = frozenset({"division"})

    modulus: int = 5
    """Numbers are 0 to `modulus` - 1."""
    operators: int = 4
    """Most operators of an expression in training; each test expression has as many."""
    division: bool = False
    """Whether there are quotients, too; `modulus` must then be a prime."""

    def __post_init__(self) -> None:
        """Check the options."""
        self.signs = SIGNS + DIVISION * self.division
        self.length = 2 * self.operators + 4
        self.first_mark = self.modulus + FORMS * len(self.signs)
        self.generated_as(
            vocabulary=self.first_mark + FORMS * (1 + 2 * self.operators),
            difficulty=f"{self.operators} operators modulo {self.modulus}",
        )
        if self.modulus < 2:
            raise ValueError(f"task.modulus must be at least 2: got {self.modulus}")
        if self.division:
            self._check_division()

    def _check_division(self) -> None:
        """Raise ValueError if quotients are not unique, or nearly all expressions undefined."""
        factors = (n for n in range(2, math.isqrt(self.modulus) + 1) if self.modulus % n == 0)
        if factor := next(factors, None):
            raise ValueError(
                f"task.division=true needs a prime task.modulus, because quotients by {factor} are "
                f"missing or ambiguous modulo {self.modulus}: got {self.modulus}; choose for "
                "example 23"
            )
        # A quarter of the operators divides, by zero with a probability of up to 2 / modulus.
        if (1 - 0.5 / self.modulus) ** self.operators < LEAST_DEFINED:
            raise ValueError(
                f"nearly every expression of {self.operators} operators modulo {self.modulus} "
                f"divides by zero: got task.operators={self.operators}, task.modulus="
                f"{self.modulus}; lower task.operators, or raise task.modulus"
            )

    def words(self, length: int) -> int:
        """Return the number of random words for a row: one for each token, one for its size."""
        return 1 + length

    def drawn(self, words: UInt64[np.ndarray, "n w"], length: int) -> Rows:
        """Return the training rows that these random words decide."""
        return self.drawn_for("train", words, length)

    def drawn_for(self, split: str, words: UInt64[np.ndarray, "n w"], length: int) -> Rows:
        """Return the rows of `split` that these random words decide."""
        count = np.full(len(words), self.operators)
        if split != "test":
            count = 1 + below(words[:, 0], self.operators)
        content = expressions(words[:, 1:-3], count, self.modulus, len(self.signs))
        answer = values(content, self.modulus)
        for attempt in itertools.count():
            again = np.flatnonzero(answer == UNDEFINED)
            if not len(again):
                break
            seeds = ((int(word) << 20) + attempt for word in words[again, 0])
            drawn = [random_words(Draw.redrawn, seed, content.shape[1]) for seed in seeds]
            fresh = expressions(np.stack(drawn), count[again], self.modulus, len(self.signs))
            content[again], answer[again] = fresh, values(fresh, self.modulus)
        forms = below(words[:, -3:], FORMS)
        tokens, answers = np.zeros((2, len(words), length), np.int64)
        rows, end = np.arange(len(words)), 2 * count + 3
        tokens[:, 0] = self.first_mark + forms[:, 0]
        tokens[:, 1] = self.first_mark + FORMS * count + forms[:, 1]
        tokens[:, 2:-1] = content
        tokens[rows, end] = self.first_mark + FORMS * (self.operators + count) + forms[:, 2]
        answers[:] = NOT_ASKED
        answers[rows, end] = answer
        return Rows(tokens, answers, end + 1)

    def different_rows(self, length: int) -> float:
        """Return the binary logarithm of the number of different rows with one operator."""
        del length
        return math.log2(len(SIGNS) * self.modulus**2 * FORMS**4)

    def token_text(self, token: int) -> str:
        """Return a number, a sign, or begin, len1, …, ?1, …; the second form has a ' in front."""
        if token < self.modulus:
            return str(token)
        kind, form = divmod(token - self.modulus, FORMS)
        sizes = range(1, self.operators + 1)
        names = [*self.signs, "begin", *(f"len{n}" for n in sizes), *(f"?{n}" for n in sizes)]
        return f"{MARK * form}{names[kind]}"

    def groups(self, batch: Batch) -> Mapping[str, Int[Tensor, "b l"]]:
        """Return `operators`: the number of operators of the row."""
        tokens = batch.tokens[:, 0] - 1
        count = ((tokens >= self.modulus) & (tokens < self.first_mark)).sum(1, keepdim=True)
        return {"operators": count.expand_as(tokens)}

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the baselines of all diagnostics, and the first number, on `split`."""

        def first_number(tokens: np.ndarray) -> np.ndarray:
            """Return the first number of each row as the answer."""
            place = 2 + (tokens[:, 2:] < self.modulus).argmax(1)
            return np.take_along_axis(tokens, place[:, None], axis=1)

        return [
            *super().baselines(split),
            self.baseline(
                "first_number",
                split,
                first_number,
                "This baseline answers the first number of the expression. A model with this "
                "score computes nothing.",
            ),
        ]


def expressions(
    words: UInt64[np.ndarray, "n p"],
    operators: Int[np.ndarray, " n"],
    modulus: int,
    signs: int = len(SIGNS),
) -> Int[np.ndarray, "n p"]:
    """Return random expressions of `operators` operators, and 0 behind them.

    Each random word decides one token. Numbers are themselves, and the forms of the first `signs`
    operators follow them.
    """
    number, places = words.shape
    tokens, rows = np.zeros((number, places), np.int64), np.arange(number)
    # The sizes of the parts that are still to be written; the last one comes next.
    sizes, depth = np.zeros((number, places), np.int64), np.ones(number, np.int64)
    sizes[:, 0] = operators
    kinds = FORMS * signs
    for place in range(places):
        word, size = words[:, place], np.where(depth > 0, sizes[rows, depth - 1], 0)
        inner = size > 0
        left = (word // np.uint64(kinds) % np.maximum(size, 1).astype(np.uint64)).astype(np.int64)
        leaf = np.where(depth > 0, below(word, modulus), 0)
        tokens[:, place] = np.where(inner, modulus + below(word, kinds), leaf)
        sizes[rows, depth - 1] = size - 1 - left
        depth = np.where(inner, depth + 1, np.maximum(depth - 1, 0))
        sizes[rows[inner], depth[inner] - 1] = left[inner]
    return tokens


def values(tokens: Int[np.ndarray, "n p"], modulus: int) -> Int[np.ndarray, " n"]:
    """Return the values of expressions, read from the end, whatever numbers follow them.

    The value is `UNDEFINED` if an expression divides by zero.
    """
    rows, undefined = np.arange(len(tokens)), np.zeros(len(tokens), bool)
    # A stack of values; the last one is the part that begins at this place.
    stack, depth = np.zeros_like(tokens), np.zeros(len(tokens), np.int64)
    for place in reversed(range(tokens.shape[1])):
        token = tokens[:, place]
        left, right = stack[rows, depth - 1], stack[rows, depth - 2]
        sign = (token - modulus) // FORMS
        found = np.select([sign < 0, sign == 0, sign == 1], [token, left + right, left - right])
        if (sign == len(SIGNS)).any():
            undefined |= (sign == len(SIGNS)) & (right == 0)
            right = np.where(sign == len(SIGNS), inverses(modulus)[right], right)
        found = np.where(sign >= 2, left * right, found) % modulus
        depth = np.where(sign < 0, depth + 1, depth - 1)
        stack[rows, depth - 1] = found
    return np.where(undefined, UNDEFINED, stack[rows, depth - 1])


@cache
def inverses(prime: int) -> Int[np.ndarray, " p"]:
    """Return 1 divided by each number below a prime, modulo this prime; for 0, any number."""
    return np.array([pow(number, prime - 2, prime) for number in range(prime)])
