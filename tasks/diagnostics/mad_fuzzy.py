"""Fuzzy recall of MAD (Poli et al., arXiv:2403.17844): keys and values of 1 to 3 tokens.

    _ _ k3 k1 v7 k2 k5 v2 v4 k3 k1 v7 … k2 k5 v2      pairs of a key and its value, without the
    . .  .  .  .  .  .  .  .  . v7  . …  . v2 v4      last token; values of repeated keys are asked

The last id is padding, on the left; of the others, the lower half (rounded down) makes keys, the
rest values. A key or value has different tokens in an order. Each row draws a value for every key.
Values have 1 to 3 tokens; keys too in training, but always 3 in validation and test. A row first
draws the pair that its end repeats, and inserts it once a random number of tokens is reached. Pairs
follow until fewer than 6 tokens are left beside that end. In 2 % of MAD's rows they are too few, so
the end asks for a value never shown; here that pair then replaces the last one.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int, UInt64

from lra.conf.choices import by_name
from lra.tasks.diagnostics.base import NOT_ASKED, DiagnosticTask, Loss, Rows, below
from lra.tasks.diagnostics.mad_recall import last_where
from lra.tasks.task import Baseline

MOST = 3  # tokens of the longest key, and of the longest value


@by_name
@dataclass(kw_only=True, eq=False)
class MadFuzzy(DiagnosticTask):
    """Fuzzy recall: answer each repeated key of several tokens with its value."""

    name: ClassVar[str] = "mad_fuzzy"
    scores: ClassVar[frozenset[str]] = frozenset({"macro_accuracy"})

    length: int = 128
    vocabulary: int = 16
    """Number of token ids; the last one is padding, and half of the others make keys."""
    loss: Loss = Loss.all
    train_examples: int = 12_800
    validation_examples: int = 1280
    test_examples: int = 1280

    def __post_init__(self) -> None:
        """Check the options."""
        self.keys = (self.vocabulary - 1) // 2
        self.generated_as(vocabulary=self.vocabulary, difficulty=f"keys of {self.keys} tokens")
        if self.keys < MOST:
            raise ValueError(
                f"task.vocabulary must be at least {2 * MOST + 1}, for padding, and {MOST} "
                f"different tokens in a key and in a value: got {self.vocabulary}"
            )
        self.least(4 * MOST + 1, f"a key and a value of {MOST} tokens, twice")

    def words(self, length: int) -> int:
        """Return the number of random words for a row: a place, and 8 for each pair."""
        return 1 + 8 * (1 + (length - 2 * MOST - 1) // 2)

    def drawn(self, words: UInt64[np.ndarray, "n w"], length: int) -> Rows:
        """Return the training rows that these random words decide."""
        return self.drawn_for("train", words, length)

    def drawn_for(self, split: str, words: UInt64[np.ndarray, "n w"], length: int) -> Rows:
        """Return the rows of `split` that these random words decide."""
        return fuzzy_rows(words, length, self.vocabulary, 1 if split == "train" else MOST)

    def different_rows(self, length: int) -> float:
        """Return the binary logarithm of the number of rows of long pairs with different keys."""
        pairs = 1 + (length - 4 * MOST) // (2 * MOST)
        return pairs * math.log2(math.perm(self.keys, MOST))

    def token_text(self, token: int) -> str:
        """Return k1, k2, … in keys, v1, v2, … in values, and _ for padding."""
        text = f"k{token + 1}" if token < self.keys else f"v{token - self.keys + 1}"
        return "_" if token == self.vocabulary - 1 else text

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the baselines of all diagnostics, and the last value, on `split`."""

        def last_value(tokens: np.ndarray) -> np.ndarray:
            """Return the token of the value before, at the same place in it or the last one."""
            rows, place = np.arange(len(tokens))[:, None], np.arange(tokens.shape[1])
            is_value = (tokens >= self.keys) & (tokens < self.vocabulary - 1)
            is_first = is_value & np.pad(~is_value[:, :-1], ((0, 0), (1, 0)))
            start, end = last_where(is_first), last_where(is_value)
            # Inside a value, its next token is asked, and the value before ends at its key.
            here = np.where(is_value, place + 1 - start, 0)
            before = np.where(is_value, np.maximum(start - 1, 0), place)
            token: np.ndarray = tokens[
                rows, np.minimum(start[rows, before] + here, end[rows, before])
            ]
            return token

        return [
            *super().baselines(split),
            self.baseline(
                "last_value",
                split,
                last_value,
                "This baseline always answers the value of the pair before. A model with this "
                "score recognises values, but does not look up the key.",
            ),
        ]


def triples(words: UInt64[np.ndarray, "*n 3"], of: int) -> Int[np.ndarray, "*n 3"]:
    """Return three different numbers below `of`, in random order, for three random words."""
    first, second, third = (below(words[..., i], of - i) for i in range(MOST))
    second += second >= first
    third += third >= np.minimum(first, second)
    third += third >= np.maximum(first, second)
    return np.stack((first, second, third), axis=-1)


def fuzzy_rows(
    words: UInt64[np.ndarray, "n w"], length: int, vocabulary: int, shortest: int
) -> Rows:
    """Return rows whose keys have `shortest` to 3 tokens; pair 0 of a row is that of its end."""
    number, keys, part = len(words), (vocabulary - 1) // 2, np.arange(MOST)
    of_pair = words[:, 1:].reshape(number, -1, 8)
    key, value = triples(of_pair[..., 2:5], keys), triples(of_pair[..., 5:], vocabulary - 1 - keys)
    # Absent tokens are -1. The first pair with a key decides its value.
    key = np.where(part < shortest + below(of_pair[..., :1], MOST + 1 - shortest), key, -1)
    value = np.where(part < 1 + below(of_pair[..., 1:2], MOST), value + keys, -1)
    rows = np.arange(number)[:, None]
    code = rows * (keys + 1) ** MOST + (key + 1) @ (keys + 1) ** part
    _, index, inverse = np.unique(code, return_index=True, return_inverse=True)
    first = index[inverse].reshape(code.shape) - rows * code.shape[1]
    pairs = np.concatenate((key, value[rows, first]), axis=2)
    size = (pairs >= 0).sum(axis=2)
    end, limit = size[:, :1], length - size[:, :1] - 2 * MOST
    start = size[:, 1:].cumsum(axis=1) - size[:, 1:]
    place = (words[:, :1] % (length - 2 * end).astype(np.uint64)).astype(np.int64)
    put = np.minimum((start < place).sum(1), (start < limit).sum(1) - 1)[:, None]
    # `put` pairs come before that of the end, unless they include it.
    slot = np.arange(code.shape[1])
    included = ((first == 0) & (slot > 0) & (slot <= put)).any(axis=1, keepdims=True)
    put = np.where(included, slot[-1], put)
    order = np.where(slot < put, slot + 1, np.where(slot == put, 0, slot))
    pairs, first, size = pairs[rows, order], first[rows, order], size[rows, order]
    used = size.cumsum(axis=1) - size < limit
    repeated = np.where(first == 0, (first == 0).cumsum(axis=1) > 1, first < order)
    # The pair of the end comes behind the others, and all are moved to the right.
    pairs = np.concatenate((np.where(used[..., None], pairs, -1), pairs[rows, put]), axis=1)
    repeated = np.concatenate((repeated, np.ones_like(put, bool)), axis=1)
    tokens, answers = (np.full((number, length + 1), n) for n in (vocabulary - 1, NOT_ASKED))
    row, pair, place = np.nonzero(pairs >= 0)
    at = np.arange(len(row)) + (length + 1 - np.bincount(row).cumsum())[row]
    tokens[row, at] = content = pairs[row, pair, place]
    asked = repeated[row, pair] & (place >= MOST)
    answers[row[asked], at[asked] - 1] = content[asked]
    return Rows(tokens[:, :-1], answers[:, :-1])
