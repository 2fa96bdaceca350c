"""Multi-query associative recall (Arora et al., Zoology, arXiv:2312.04927).

    k4 v8 k2 v3 k7 v6 | k2 v9 k4 k1 v1 v5 k7 v2      pairs of a key and its value, then queries
     .  .  .  .  .  .   v3  . v8  .  .  . v6  .      the value that belongs to the key

Each key is asked once. Keys are the lower half of the vocabulary without 0, values the upper half;
both differ within a row. Slot g of the queries, two tokens each, is taken with a weight of
(g + 1)^(power - 1), as the gap between repetitions in real language: most queries come soon, some
late. What stands between them is any token, as in the authors' code, or blank.

Their Figure 2: length 64, 128, 256, 512 with 4, 8, 16, 64 pairs, a vocabulary of 8,192, power 0.01,
100,000 training rows; models of 2 layers. `power=1` spreads the queries evenly.
"""

import math
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import ClassVar

import numpy as np
from jaxtyping import Int, UInt64

from lra.conf.choices import by_name
from lra.tasks.diagnostics.base import NOT_ASKED, DiagnosticTask, Rows, below, distinct
from lra.tasks.task import Baseline


class Filler(StrEnum):
    """What stands where nothing is asked."""

    random = auto()
    blank = auto()


@by_name
@dataclass(kw_only=True, eq=False)
class MQAR(DiagnosticTask):
    """The task; see the module's text."""

    name: ClassVar[str] = "mqar"

    length: int = 64
    pairs: int = 4
    """Keys with their values, each of which is asked for once."""
    vocabulary: int = 8192
    """Token ids: 0 is blank, one half are keys, the other values."""
    power: float = 0.01
    """Of the gaps' power law: above 0; 1 makes all gaps equally frequent."""
    filler: Filler = Filler.random
    """What stands between: random or blank."""
    train_examples: int = 100_000
    validation_examples: int = 3000
    test_examples: int = 3000

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        vocabulary, pairs = self.vocabulary, self.pairs
        self.generated_as(vocabulary=vocabulary, difficulty=f"{pairs} pairs of {vocabulary} tokens")
        if vocabulary // 2 - 1 < pairs:
            raise ValueError(
                f"task.vocabulary={vocabulary} has {max(0, vocabulary // 2 - 1)} keys for "
                f"task.pairs={pairs}: wanted a vocabulary of at least {2 * pairs + 2}"
            )
        if not 0 < self.power <= 1:
            raise ValueError(f"task.power={self.power}: wanted above 0, at most 1 (evenly spread)")
        self.least(4 * pairs, f"{pairs} pairs and as many slots for queries, two tokens each,")

    def words(self, length: int) -> int:
        """Return how many random words a row is made of."""
        return 2 * self.pairs + slots(length, self.pairs) + length

    def drawn(self, words: UInt64[np.ndarray, "n w"], length: int) -> Rows:
        """Return the rows that some random words make."""
        return recall_rows(
            words,
            length=length,
            pairs=self.pairs,
            vocabulary=self.vocabulary,
            power=self.power,
            filler=self.filler,
        )

    def different_rows(self, length: int) -> float:
        """Return the binary logarithm of the number of rows, those of the keys and values alone."""
        del length
        half = self.vocabulary // 2
        return math.log2(math.perm(half - 1, self.pairs)) + math.log2(
            math.perm(self.vocabulary - half, self.pairs)
        )

    def token_text(self, token: int) -> str:
        """Return k1, k2, … for keys, v1, v2, … for values, _ for blank."""
        half = self.vocabulary // 2
        if token == 0:
            return "_"
        return f"k{token}" if token < half else f"v{token - half + 1}"

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the baselines on `split`: those of all diagnostics, and the last value."""
        return [
            *super().baselines(split),
            self.baseline(
                "last_value",
                split,
                lambda tokens: tokens[:, 2 * self.pairs - 1, None],
                f"always answers the value of the last pair, correct for 1 of {self.pairs}: a "
                "model with this score recognises values, but does not look up the key",
            ),
        ]


def slots(length: int, pairs: int) -> int:
    """Return the number of positions where a query may stand."""
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
    """Return rows of key and value pairs, then queries: keys again, whose answers are the values.

    A query stands in one of `slots` places of two tokens; `weighted_choice` draws them so that near
    ones are the more frequent the smaller `power` is. `words` are random: pairs of them for keys,
    as many for values, one for each slot, and `length` for what stands between.
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
    """Draw `number` positions i one after another without return, with weights (i + 1)^(power - 1).

    A race: each position arrives after an exponential time at the rate of its weight, and the first
    to arrive are the ones drawn, in that order.
    """
    rate = np.arange(1, words.shape[1] + 1) ** (power - 1.0)
    uniform = ((words >> np.uint64(11)) + 1) * 2.0**-53
    return np.argsort(-np.log(uniform) / rate, axis=1, kind="stable")[:, :number]
