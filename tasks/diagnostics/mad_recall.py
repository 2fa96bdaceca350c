"""In-context recall of MAD (Poli et al., arXiv:2403.17844).

    k3 v7 k1 v2 k3 v7 k1 v2 k3      pairs of a key and its value, without the last value
     .  .  .  . v7  . v2  . v7      the answer is the value of a key that was seen before

Keys are the lower half of the ids, values the upper half. Each row draws a value for every key, so
two keys may have the same one. The last key is one of those seen before, each equally probable. A
row of 127 tokens is MAD's 128, whose last value is only an answer.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Int, UInt64

from lra.conf.choices import by_name
from lra.tasks.diagnostics.base import NOT_ASKED, DiagnosticTask, Loss, Rows, below
from lra.tasks.task import Baseline


@by_name
@dataclass(kw_only=True, eq=False)
class MadRecall(DiagnosticTask):
    """In-context recall: answer each repeated key with its value."""

    name: ClassVar[str] = "mad_recall"
    scores: ClassVar[frozenset[str]] = frozenset({"macro_accuracy"})

    length: int = 127
    vocabulary: int = 16
    """Number of token ids."""
    loss: Loss = Loss.all
    train_examples: int = 12_800
    validation_examples: int = 1280
    test_examples: int = 1280

    def __post_init__(self) -> None:
        """Check the options."""
        ids = self.pair_ids()
        self.keys, self.values = ids // 2, ids - ids // 2
        self.generated_as(vocabulary=self.vocabulary, difficulty=self.described())
        if self.keys < 1:
            raise ValueError(
                "task.vocabulary must leave at least 2 ids, for a key and a value: got "
                f"{self.vocabulary}, which leaves {ids}"
            )
        self.least(3, "a pair of a key and its value, and the same key again")
        for length in (self.length, self.tested_length, *(self.test_lengths or ())):
            if length % 2 == 0:
                raise ValueError(
                    "lengths must be odd, because a row is pairs of tokens without the last value: "
                    f"got {length}; wanted {length - 1} or {length + 1}"
                )

    def pair_ids(self) -> int:
        """Return the number of ids that are keys or values."""
        return self.vocabulary

    def described(self) -> str:
        """Return the difficulty in a few words."""
        return f"{self.keys} keys"

    def allowed_length(self, length: int) -> int:
        """Return `length` if it is odd, else the next length."""
        return length | 1

    def words(self, length: int) -> int:
        """Return the number of random words for a row: for keys, their values, and the last key."""
        return length // 2 + self.keys + 1

    def drawn(self, words: UInt64[np.ndarray, "n w"], length: int) -> Rows:
        """Return the rows that these random words decide."""
        no_noise = np.zeros((len(words), length // 2), bool)
        return pair_rows(words, no_noise, keys=self.keys, values=self.values)

    def different_rows(self, length: int) -> float:
        """Return the binary logarithm of the number of rows with different keys."""
        return length // 2 * math.log2(self.keys) + math.log2(self.values)

    def token_text(self, token: int) -> str:
        """Return k1, k2, … for keys, v1, v2, … for values."""
        return f"k{token + 1}" if token < self.keys else f"v{token - self.keys + 1}"

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the baselines of all diagnostics, and the last value, on `split`."""

        def last_value(tokens: np.ndarray) -> np.ndarray:
            """Return the last value before each position, which is correct at keys."""
            is_value = (tokens >= self.keys) & (tokens < self.keys + self.values)
            return np.take_along_axis(tokens, last_where(is_value), axis=1)

        return [
            *super().baselines(split),
            self.baseline(
                "last_value",
                split,
                last_value,
                "This baseline always answers the value that was seen last. A model with this "
                "score recognises values, but does not look up the key.",
            ),
        ]


def last_where(condition: Bool[np.ndarray, "n l"]) -> Int[np.ndarray, "n l"]:
    """Return for each position the last one up to it at which `condition` holds; 0 if none."""
    positions = np.where(condition, np.arange(condition.shape[1]), 0)
    return np.maximum.accumulate(positions, axis=1)


def pair_rows(
    words: UInt64[np.ndarray, "n w"],
    is_noise: Bool[np.ndarray, "n s"],
    *,
    keys: int,
    values: int,
) -> Rows:
    """Return rows of s pairs and a last key, of 2 s + 1 tokens; slots of noise have any tokens.

    Each row has a random word for each slot's key, for each key's value, and for the last key.
    """
    number, slots = is_noise.shape
    # Noise is one more key, which is never asked.
    key = np.where(is_noise, keys, below(words[:, :slots], keys))
    value_of = keys + below(words[:, slots:], values)
    first = np.full((number, keys + 1), slots)
    np.minimum.at(first, (np.arange(number)[:, None], key), np.arange(slots))
    seen = first[:, :keys] < slots
    rank = words[:, -1] % seen.sum(axis=1, dtype=np.uint64)
    last = (seen.cumsum(axis=1) > rank[:, None]).argmax(axis=1)
    key = np.concatenate((key, last[:, None]), axis=1)
    value = np.take_along_axis(value_of, key, axis=1)
    repeated = np.take_along_axis(first, key, axis=1) < np.arange(slots + 1)
    tokens = np.stack((key, value), axis=2).reshape(number, -1)[:, :-1]
    answers = np.full_like(tokens, NOT_ASKED)
    answers[:, ::2] = np.where(repeated & (key < keys), value, NOT_ASKED)
    return Rows(tokens, answers)
