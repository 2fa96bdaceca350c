"""Rows of associative recall: pairs of a key and a value, then queries of keys."""

from dataclasses import dataclass
from enum import StrEnum, auto

import numpy as np
from jaxtyping import Int, UInt64

from lra.tasks.diagnostics.base import NOT_ASKED, Rows, below, distinct
from lra.tasks.diagnostics.draws import unit


class Filler(StrEnum):
    """Tokens at positions between queries."""

    random = auto()
    blank = auto()


@dataclass(frozen=True, kw_only=True)
class RecallForm:
    """What a row of associative recall consists of; see the options of `MQAR`."""

    pairs: int
    vocabulary: int
    power: float
    filler: Filler
    passes: int
    updates: int
    grid: int | None
    queries: int

    @property
    def key_tokens(self) -> int:
        """Number of tokens of a key."""
        return 1 if self.grid is None else 2

    @property
    def first_value(self) -> int:
        """The smallest id of a value; larger ids are values, too."""
        return self.vocabulary // 2 if self.grid is None else 2 * self.half_keys + 1

    @property
    def half_keys(self) -> int:
        """Number of ids for each of the two tokens of a key."""
        return (self.vocabulary - 1) // 3

    @property
    def context(self) -> int:
        """Number of tokens before the queries."""
        return (self.key_tokens + 1) * (self.pairs + self.updates) * self.passes

    def slots(self, length: int) -> int:
        """Return the number of slots for queries after the context, each as long as a pair."""
        return (length - self.context) // (self.key_tokens + 1)

    def words(self, length: int) -> list[int]:
        """Return the numbers of random words for keys, values, slots, filler and options."""
        in_grid = 0 if self.grid is None else 2 * self.grid
        some = 0 if self.queries == self.pairs else self.pairs
        updated = self.pairs if self.updates else 0
        values = self.pairs + self.updates
        return [self.pairs, values, self.slots(length), length, updated, some, in_grid]

    def keys(
        self, words: UInt64[np.ndarray, "n p"], of_grid: UInt64[np.ndarray, "n g"]
    ) -> Int[np.ndarray, "n p t"]:
        """Return different keys of one or two tokens for each row."""
        if self.grid is None:
            return 1 + distinct(words, self.first_value - 1)[..., None]
        halves = [distinct(part, self.half_keys) for part in np.split(of_grid, 2, axis=1)]
        cells = np.divmod(distinct(words, self.grid**2), self.grid)
        tokens = [
            1 + number * self.half_keys + np.take_along_axis(half, cell, axis=1)
            for number, (half, cell) in enumerate(zip(halves, cells, strict=True))
        ]
        return np.stack(tokens, axis=2)

    def rows(self, words: UInt64[np.ndarray, "n w"], length: int) -> Rows:
        """Return rows of pairs, then queries: keys, which are answered by their newest values.

        `weighted_choice` draws the slots of the queries. The answer stands at the last token of the
        key.
        """
        for_keys, for_values, for_slots, for_filler, for_updates, for_queries, of_grid = np.split(
            words, np.cumsum(self.words(length))[:-1], axis=1
        )
        keys = self.keys(for_keys, of_grid)
        values = self.first_value + distinct(for_values, self.vocabulary - self.first_value)
        newest = values[:, : self.pairs].copy()
        if self.updates:
            changed = distinct(for_updates, self.pairs)[:, : self.updates]
            np.put_along_axis(newest, changed, values[:, self.pairs :], axis=1)
            again = np.take_along_axis(keys, changed[..., None], axis=1)
            written = np.concatenate((keys, again), axis=1)
        else:
            written = keys
        if self.filler is Filler.random:
            tokens = below(for_filler, self.vocabulary)
        else:
            tokens = np.zeros((len(words), length), np.int64)
        pairs = np.concatenate((written, values[..., None]), axis=2).reshape(len(words), -1)
        tokens[:, : self.context] = np.tile(pairs, (1, self.passes))
        asked = np.broadcast_to(np.arange(self.pairs), newest.shape)
        if self.queries < self.pairs:
            asked = distinct(for_queries, self.pairs)[:, : self.queries]
        chosen = weighted_choice(for_slots, self.queries, self.power)
        places = self.context + (self.key_tokens + 1) * chosen
        for number in range(self.key_tokens):
            token = np.take_along_axis(keys[..., number], asked, axis=1)
            np.put_along_axis(tokens, places + number, token, axis=1)
        answers = np.full_like(tokens, NOT_ASKED)
        last = places + self.key_tokens - 1
        np.put_along_axis(answers, last, np.take_along_axis(newest, asked, axis=1), axis=1)
        return Rows(tokens, answers)

    def first_values(self, tokens: Int[np.ndarray, "n l"]) -> Int[np.ndarray, "n l"]:
        """Return, at each position, the first value of the key that ends there; else any value."""
        codes = tokens.copy()
        if self.grid is not None:
            codes[:, 1:] += self.vocabulary * tokens[:, :-1]
        step, before = self.key_tokens + 1, (self.key_tokens + 1) * self.pairs
        keys, values = codes[:, step - 2 : before : step], tokens[:, step - 1 : before : step]
        return np.take_along_axis(values, (codes[..., None] == keys[:, None]).argmax(2), axis=1)

    def values_of_half_keys(self, tokens: Int[np.ndarray, "n l"]) -> Int[np.ndarray, "n l"]:
        """Return, at each position, the last value behind a key that ends with its token."""
        step = self.key_tokens + 1
        keys, values = (tokens[:, step - n : self.context : step][:, ::-1] for n in (2, 1))
        return np.take_along_axis(values, (tokens[..., None] == keys[:, None]).argmax(2), axis=1)


def weighted_choice(
    words: UInt64[np.ndarray, "n p"], number: int, power: float
) -> Int[np.ndarray, "n k"]:
    """Draw `number` of the positions i without replacement, with weights (i + 1)^(power - 1).

    Each position gets an exponential random time with its weight as the rate; the positions with
    the `number` smallest times are drawn, in the order of their times.
    """
    rate = np.arange(1, words.shape[1] + 1) ** (power - 1.0)
    return np.argsort(-np.log(unit(words)) / rate, axis=1, kind="stable")[:, :number]
