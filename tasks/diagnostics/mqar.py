"""Multi-query associative recall (Arora et al., Zoology, arXiv:2312.04927).

    k4 v8 k2 v3 k7 v6 | k2 v9 k4 k1 v1 v5 k7 v2      pairs of a key and its value, then queries
     .  .  .  .  .  .   v3  . v8  .  .  . v6  .      the answer is the value of the key

Each key is queried once. Keys are the lower half of the vocabulary without 0, values the upper
half; no key or value repeats within a row. The part after the pairs has slots of two tokens, and
slot g is drawn for a query with the weight (g + 1)^(power - 1). So most queries come soon and some
late, as words in real language repeat. Other positions have random tokens, as in the authors' code,
or blanks.

Figure 2 of the paper uses lengths 64, 128, 256, 512 with 4, 8, 16, 64 pairs, a vocabulary of 8,192,
power 0.01, 100,000 training rows, and models of 2 layers. `power=1` spreads the queries evenly.
"""

import math
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import ClassVar

import numpy as np
from jaxtyping import Int, UInt64

from lra.conf.choices import by_name
from lra.tasks.diagnostics.base import NOT_ASKED, DiagnosticTask, Rows, below, distinct
from lra.tasks.diagnostics.draws import unit
from lra.tasks.task import Baseline


class Filler(StrEnum):
    """Tokens at positions between queries."""

    random = auto()
    blank = auto()


@by_name
@dataclass(kw_only=True, eq=False)
class MQAR(DiagnosticTask):
    """Multi-query associative recall: answer each key with the value that came after it before."""

    name: ClassVar[str] = "mqar"

    length: int = 64
    pairs: int = 4
    """Number of pairs of a key and a value; each key is queried once."""
    vocabulary: int = 8192
    """Number of token ids: 0 is blank, the lower half are keys, the upper half values."""
    power: float = 0.01
    """Exponent of the distances between pairs and queries, above 0 and at most 1. A smaller one
    makes short distances more frequent; 1 makes all equally frequent."""
    filler: Filler = Filler.random
    """Tokens between queries: random or blank."""
    train_examples: int | None = 100_000
    validation_examples: int = 3000
    test_examples: int = 3000

    def __post_init__(self) -> None:
        """Check the options."""
        vocabulary, pairs = self.vocabulary, self.pairs
        self.generated_as(vocabulary=vocabulary, difficulty=f"{pairs} pairs of {vocabulary} tokens")
        if vocabulary // 2 - 1 < pairs:
            raise ValueError(
                f"task.vocabulary must be at least {2 * pairs + 2} for task.pairs={pairs}: got "
                f"{vocabulary}, which has {max(0, vocabulary // 2 - 1)} keys"
            )
        if not 0 < self.power <= 1:
            raise ValueError(f"task.power must lie in (0, 1]: got {self.power}")
        self.least(4 * pairs, f"2 tokens for each of {pairs} pairs and for each of {pairs} queries")

    def words(self, length: int) -> int:
        """Return the number of random words for a row: for keys, values, slots and filler."""
        return 2 * self.pairs + slots(length, self.pairs) + length

    def drawn(self, words: UInt64[np.ndarray, "n w"], length: int) -> Rows:
        """Return the rows that these random words decide."""
        return recall_rows(
            words,
            length=length,
            pairs=self.pairs,
            vocabulary=self.vocabulary,
            power=self.power,
            filler=self.filler,
        )

    def different_rows(self, length: int) -> float:
        """Return the binary logarithm of the number of different sequences of pairs."""
        del length
        half = self.vocabulary // 2
        return math.log2(math.perm(half - 1, self.pairs)) + math.log2(
            math.perm(self.vocabulary - half, self.pairs)
        )

    def token_text(self, token: int) -> str:
        """Return k1, k2, … for keys, v1, v2, … for values, and _ for blank."""
        half = self.vocabulary // 2
        if token == 0:
            return "_"
        return f"k{token}" if token < half else f"v{token - half + 1}"

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the baselines of all diagnostics, and the last value, on `split`."""
        return [
            *super().baselines(split),
            self.baseline(
                "last_value",
                split,
                lambda tokens: tokens[:, 2 * self.pairs - 1, None],
                "This baseline always answers the value of the last pair, which is correct for 1 "
                f"of {self.pairs} queries. A model with this score recognises values, but does not "
                "look up the key.",
            ),
        ]


def slots(length: int, pairs: int) -> int:
    """Return the number of slots for queries, of two tokens each, after the pairs."""
    return (length - 2 * pairs) // 2


def recall_rows(
    words: UInt64[np.ndarray, "n w"],
    *,
    length: int,
    pairs: int,
    vocabulary: int,
    power: float,
    filler: Filler,
) -> Rows:
    """Return rows of pairs of a key and a value, then queries: the keys, answered by their values.

    `weighted_choice` draws the slots of the queries; with a smaller `power`, early slots are more
    frequent. Each row of `words` has `pairs` random words for keys, `pairs` for values, one for
    each slot, and `length` for the tokens between queries.
    """
    half = vocabulary // 2
    for_keys, for_values, for_slots, for_filler = np.split(
        words, np.cumsum([pairs, pairs, slots(length, pairs)]), axis=1
    )
    keys = 1 + distinct(for_keys, half - 1)
    values = half + distinct(for_values, vocabulary - half)
    if filler is Filler.random:
        tokens = below(for_filler, vocabulary)
    else:
        tokens = np.zeros((len(words), length), np.int64)
    tokens[:, : 2 * pairs : 2] = keys
    tokens[:, 1 : 2 * pairs : 2] = values
    queries = 2 * pairs + 2 * weighted_choice(for_slots, pairs, power)
    np.put_along_axis(tokens, queries, keys, axis=1)
    answers = np.full_like(tokens, NOT_ASKED)
    np.put_along_axis(answers, queries, values, axis=1)
    return Rows(tokens, answers)


def weighted_choice(
    words: UInt64[np.ndarray, "n p"], number: int, power: float
) -> Int[np.ndarray, "n k"]:
    """Draw `number` of the positions i without replacement, with weights (i + 1)^(power - 1).

    Each position gets an exponential random time with its weight as the rate; the positions with
    the `number` smallest times are drawn, in the order of their times.
    """
    rate = np.arange(1, words.shape[1] + 1) ** (power - 1.0)
    return np.argsort(-np.log(unit(words)) / rate, axis=1, kind="stable")[:, :number]
