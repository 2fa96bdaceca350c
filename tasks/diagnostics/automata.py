"""Random regular languages, learned from examples in context (RegBench, arXiv:2401.12973).

    b a b a | a b | b a b       three strings of a language without a a and b b
    . . . . . . . . . . .       each letter but the first is asked, at the token in front of it

Each row has another random automaton of `least_states` to `states` states. A state has 1 to
`choices` letters of an alphabet of `least_letters` to `letters`, which lead to different other
states. Strings begin in the first state, choose each letter uniformly, and may end anywhere. The
defaults are small; the paper has `string_letters=49 most_tokens=512`.

An answer is right if a string of the language can go on so; `top_1_accuracy` counts only the letter
that was drawn. Counting in context which letter followed the last ones is a strong baseline.

This task shows whether a model infers a new language from examples. It cannot show recall over long
distances: the last three letters decide most answers. Some test languages also occur in training.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Int, UInt64

from lra.conf.choices import by_name
from lra.tasks.diagnostics.base import NOT_ASKED, Rows, below
from lra.tasks.diagnostics.derived_length import DerivedLengthTask
from lra.tasks.diagnostics.draws import random_orders
from lra.tasks.task import Baseline, Batch
from lra.tasks.tensors import Tensor, torch

MOST_LETTERS, BITS = 26, 5
"""An answer is the letter that was drawn plus 2^BITS times the bits of all allowed letters."""
ORDERS = 4
"""The longest sequences of letters that a baseline counts."""


@by_name
@dataclass(kw_only=True, eq=False)
class Automata(DerivedLengthTask):
    """Continue strings of a random regular language."""

    name: ClassVar[str] = "automata"
    scores: ClassVar[frozenset[str]] = frozenset({"top_1_accuracy"})
    writes: ClassVar[bool] = False

    least_states: int = 4
    """Fewest states of an automaton; all numbers are equally frequent."""
    states: int = 12
    """Most states of an automaton."""
    least_letters: int = 4
    """Fewest letters of the alphabet of a language."""
    letters: int = 18
    """Most letters of the alphabet of a language, and number of all letters."""
    choices: int = 3
    """Most letters that are allowed in a state."""
    least_strings: int = 10
    """Fewest strings of a row."""
    strings: int = 19
    """Most strings of a row."""
    string_letters: int = 19
    """Most letters of a string."""
    most_tokens: int = 256
    """Rows are cut after so many tokens."""
    train_examples: int | None = 5000
    validation_examples: int = 250
    test_examples: int = 250

    def __post_init__(self) -> None:
        """Check the options."""
        self.length = min(self.most_tokens, self.strings * (self.string_letters + 1) - 1)
        self.generated_as(
            vocabulary=self.letters + 1,
            difficulty=f"{self.least_states} to {self.states} states, {self.letters} letters",
        )
        self.largest_stored = 1 << (BITS + self.vocabulary)
        limits = {
            "choices": (min(self.least_letters, self.least_states - 1), "least_letters, and the "
                        "least_states - 1 other states"),
            "least_states": (self.states, "states"),
            "least_letters": (self.letters, "letters"),
            "least_strings": (self.strings, "strings"),
            "letters": (MOST_LETTERS, "a to z"),
        }  # fmt: skip
        for option, (most, reason) in limits.items():
            if (value := getattr(self, option)) > most:
                raise ValueError(f"task.{option} must be at most {most} ({reason}): got {value}")
        self.least(2, "a letter, and one that is asked")

    @property
    def _split_words(self) -> list[int]:
        """Numbers of random words: for sizes, alphabet, automaton, strings, and each letter."""
        per_state = 1 + self.letters + self.states
        return [2, self.letters, self.states * per_state, 1 + self.strings, self.length]

    def words(self, length: int) -> int:
        """Return the number of random words for a row."""
        del length
        return sum(self._split_words)

    def drawn(self, words: UInt64[np.ndarray, "n w"], length: int) -> Rows:
        """Return the rows that these random words decide; see `BITS` for answers."""
        for_sizes, for_alphabet, for_states, for_strings, for_letters = np.split(
            words, np.cumsum(self._split_words)[:-1], axis=1
        )
        rows, separator = np.arange(len(words)), self.letters
        states = between(for_sizes[:, 0], self.least_states, self.states)
        alphabet = between(for_sizes[:, 1], self.least_letters, self.letters)
        letters = random_orders(for_alphabet, np.full_like(states, self.letters))
        of_state = for_states.reshape(len(words), self.states, -1)
        allowed = between(of_state[:, :, 0], 1, self.choices)
        order = random_orders(of_state[:, :, 1 : 1 + self.letters], alphabet)[:, :, : self.choices]
        out = letters[rows[:, None, None], order]
        to = random_orders(of_state[:, :, 1 + self.letters :], states - 1)[:, :, : self.choices]
        to += to >= np.arange(self.states)[:, None]
        masks = ((1 << out) * (np.arange(self.choices) < allowed[:, :, None])).sum(2)
        number = between(for_strings[:, 0], self.least_strings, self.strings)
        ends = (between(for_strings[:, 1:], 1, self.string_letters) + 1).cumsum(1) - 1
        sizes = np.minimum(ends[rows, number - 1], length)
        tokens, answers = np.zeros((2, len(words), length), np.int64)
        state = np.zeros_like(states)
        for place in range(length):
            ended = (ends == place).any(1)
            choice = (for_letters[:, place] % allowed[rows, state].astype(np.uint64)).astype(int)
            letter = out[rows, state, choice]
            tokens[:, place] = np.where(ended, separator, letter)
            code = letter + (masks[rows, state] << BITS)
            answers[:, place] = np.where(ended, NOT_ASKED, code)
            state = np.where(ended, 0, to[rows, state, choice])
        real = np.arange(length) < sizes[:, None]
        # The answer stands at the token in front of it.
        answers = np.where(real, answers, NOT_ASKED)[:, 1:]
        answers = np.pad(answers, ((0, 0), (0, 1)), constant_values=NOT_ASKED)
        return Rows(tokens * real, answers, sizes)

    def different_rows(self, length: int) -> float:
        """Return a lower bound: the lengths of the strings that fit, and the first letter."""
        strings = min(self.least_strings, length // (self.string_letters + 1))
        return strings * math.log2(self.string_letters) + math.log2(self.letters)

    def token_text(self, token: int) -> str:
        """Return a letter or the mark between strings; of an answer, its letter."""
        return "abcdefghijklmnopqrstuvwxyz|"[token % 2**BITS if token != self.letters else -1]

    def visible_batch(self, batch: Batch, seed: int) -> Batch:
        """Return tokens, letters as targets, and the ids of all allowed letters as bits."""
        batch = super().visible_batch(batch, seed)
        assert batch.weight is not None, "questions have weights"
        code = (batch.target - self.shift) * (batch.weight > 0)
        target = code % 2**BITS + self.shift
        return batch._replace(target=target, allowed=code >> BITS << self.shift)

    def accept(
        self, chosen: Int[Tensor, "b l"], batch: Batch
    ) -> tuple[Bool[Tensor, "b l"], Mapping[str, tuple[float, float]]]:
        """Return whether each chosen letter is allowed, and how often it is the drawn one."""
        assert batch.allowed is not None, "questions have answers"
        assert batch.weight is not None, "questions have weights"
        drawn = float(((chosen == batch.target) * batch.weight).sum())
        asked = float(batch.weight.sum())
        return (batch.allowed >> chosen & 1).bool(), {"top_1_accuracy": (drawn, asked)}

    def groups(self, batch: Batch) -> Mapping[str, Int[Tensor, "b l"]]:
        """Return `strings`, how many a row has before, and `choices`, the allowed letters."""
        assert batch.allowed is not None, "questions have answers"
        bits = batch.allowed[..., None] >> torch.arange(self.vocabulary + self.shift) & 1
        before = (batch.tokens[:, 0] == self.letters + self.shift).cumsum(1)
        return {"strings": before, "choices": bits.sum(-1)}

    def baselines(self, split: str) -> list[Baseline]:
        """Compute a random letter, counts in context, and the best possible score, on `split`."""
        valid, drawn, total = np.zeros(ORDERS + 2), np.zeros(ORDERS + 2), 0
        for tokens, answers, _ in self.blocks(split):
            for row, codes in zip(tokens, answers, strict=True):
                asked = codes != NOT_ASKED
                letter, allowed = codes[asked] % 2**BITS, codes[asked] >> BITS
                number = (allowed[:, None] >> np.arange(self.letters) & 1).sum(1)
                guesses = [*count_letters(row, asked, self.letters)]
                right = [(allowed >> guess & 1).sum() for guess in guesses]
                valid += *right, number.sum() / self.letters, len(letter)
                equal = [(letter == guess).sum() for guess in guesses]
                drawn += *equal, len(letter) / self.letters, (1 / number).sum()
                total += len(letter)
        sentences = {
            f"gram_{order}": f"This baseline counts sequences of up to {order} letters in its row "
            "so far, and answers the letter that came most often after the last ones. A model with "
            "this score only counts."
            for order in range(1, ORDERS + 1)
        }
        sentences["uniform"] = "This baseline answers a random letter."
        sentences["ceiling"] = "No model can exceed this score, because letters are random."
        shares = zip((valid / total).tolist(), (drawn / total).tolist(), strict=True)
        return [
            Baseline(name, right, None, sentence, {"top_1_accuracy": equal})
            for (name, sentence), (right, equal) in zip(sentences.items(), shares, strict=True)
        ]


def count_letters(
    row: Int[np.ndarray, " l"], asked: Bool[np.ndarray, " l"], separator: int
) -> Iterator[Int[np.ndarray, " q"]]:
    """Yield answers to the questions of a row by counts after the last 0, 1, 2, … letters."""
    row, places = np.append(separator, row), np.flatnonzero(asked) + 1
    follows = row[places + 1]
    letters = follows[:, None] == np.arange(separator)
    context, guess = np.zeros_like(row), np.zeros_like(follows)
    for _ in range(ORDERS):
        # Questions before this one with the same letters in front; a string begins at its mark.
        same = np.tril(context[places, None] == context[places], -1)
        counts = same.astype(np.float32) @ letters
        guess = np.where(counts.any(1), counts.argmax(1), guess)
        yield guess
        longer = np.roll(context, 1) * (separator + 1) + row
        context = np.where(row == separator, separator, longer)


def between(words: UInt64[np.ndarray, "*n"], least: int, most: int) -> Int[np.ndarray, "*n"]:
    """Return a number from `least` to `most` for each random word."""
    return least + below(words, most - least + 1)
