"""Memorisation of MAD (Poli et al., arXiv:2403.17844): facts that no row shows.

    k3 ? k1 ? k3 ? k7 ?      keys, each with a mark behind it
     . v7 . v2 . v7 . v4     the answer at a mark is the value of its key

Of the ids below the mark, the last one, the lower half (rounded down) are keys, the rest values. A
fixed random map gives each key another value, the same in all rows and splits. A model reads no
values; it must learn the map from the losses of its answers. It cannot know the value of a key that
no training row has: with 256 rows of 16 keys, of 4,095 keys only 63 % are seen.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from jaxtyping import Int, UInt64

from lra.conf.choices import by_name
from lra.tasks.data.batching import Draw, random_words
from lra.tasks.diagnostics.base import NOT_ASKED, DiagnosticTask, Rows, below
from lra.tasks.task import Baseline

MAP_STREAM = 1 << 128
"""Streams of random words for maps begin here; those of rows are smaller."""


@by_name
@dataclass(kw_only=True, eq=False)
class MadMemorisation(DiagnosticTask):
    """Memorisation: answer each key with its value, which is the same in all rows."""

    name: ClassVar[str] = "mad_memorisation"
    multiple: ClassVar[int] = 2
    scores: ClassVar[frozenset[str]] = frozenset({"macro_accuracy"})

    length: int = 32
    vocabulary: int = 256
    """Number of token ids; the last one is the mark, and half of the others are keys."""
    train_examples: int = 256
    validation_examples: int = 1280
    test_examples: int = 1280

    def __post_init__(self) -> None:
        """Check the options."""
        self.keys = (self.vocabulary - 1) // 2
        self.generated_as(vocabulary=self.vocabulary, difficulty=f"{self.keys} keys")
        if self.keys < 1:
            raise ValueError(
                "task.vocabulary must be at least 3, for a key, a value and the mark: got "
                f"{self.vocabulary}"
            )
        for option, length in (("length", self.length), ("test_length", self.tested_length)):
            if length % 2 or length < 2:
                raise ValueError(
                    f"task.{option} must be even and at least 2, because a mark follows each key: "
                    f"got {length}; wanted {max(2, length + 1)}"
                )

    @cached_property
    def values(self) -> Int[np.ndarray, " k"]:
        """The value of each of k keys."""
        words = random_words(
            Draw.diagnostic, MAP_STREAM + self.data_seed, self.vocabulary - 1 - self.keys
        )
        return self.keys + np.argsort(words, kind="stable")[: self.keys]

    def words(self, length: int) -> int:
        """Return the number of random words for a row: one for each key."""
        return length // 2

    def drawn(self, words: UInt64[np.ndarray, "n w"], length: int) -> Rows:
        """Return the rows that these random words decide."""
        key = below(words, self.keys)
        tokens = np.full((len(words), length), self.vocabulary - 1)
        answers = np.full((len(words), length), NOT_ASKED)
        tokens[:, ::2], answers[:, 1::2] = key, self.values[key]
        return Rows(tokens, answers)

    def different_rows(self, length: int) -> float:
        """Return the binary logarithm of the number of different rows."""
        return length // 2 * math.log2(self.keys)

    def token_text(self, token: int) -> str:
        """Return k1, k2, … for keys, v1, v2, … for values, and ? for the mark."""
        if token == self.vocabulary - 1:
            return "?"
        return f"k{token + 1}" if token < self.keys else f"v{token - self.keys + 1}"

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the baselines of all diagnostics, and the ceiling of seen keys, on `split`."""
        seen = np.zeros(self.vocabulary, bool)
        for tokens, answers, _ in self.blocks("train"):
            seen[tokens[:, :-1][answers[:, 1:] != NOT_ASKED]] = True

        def of_seen_keys(tokens: np.ndarray) -> np.ndarray:
            """Return the values of keys in train, and no value for the other keys."""
            key = np.repeat(tokens[:, ::2], 2, axis=1)
            return np.where(seen[key], self.values[key], NOT_ASKED)

        return [
            *super().baselines(split),
            self.baseline(
                "ceiling_seen_keys",
                split,
                of_seen_keys,
                "This ceiling answers every key that a training row has, and no other. A model "
                "with this score has learnt all that training shows.",
            ),
        ]
