"""The base of diagnostic tasks: generated rows of tokens, with questions at some positions.

    tokens   k3 v7 k5 v2 k5 k1 k3 v9      the model reads the tokens up to each position
    answers   .  .  .  . v2  . v7  .      a dot marks a position without a question

An answer need not be the next token of the row. A few random 64-bit words decide a row completely.
Training and validation rows have `length` tokens, test rows `test_length`. Only the number of
tokens depends on these options, so a model can be trained on short rows and tested on long ones.
Splits with rows of the same length have no row in common, unless there are fewer than `ROOM` times
as many different rows as needed. In this case each split is drawn independently, and
`copies_allowed` returns 1.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float, Int, UInt64

from lra.tasks.data.batching import Draw, random_words
from lra.tasks.data.rows import RowsTask
from lra.tasks.data.sources import data_root
from lra.tasks.data.storage import RaggedRows
from lra.tasks.data.stored_task import GENERATED, identity_of
from lra.tasks.data.tokens import tally
from lra.tasks.task import SPLITS, Baseline, Batch, Kind, Tally, TaskSpec
from lra.tasks.tensors import Tensor

NOT_ASKED = -1
ROOM = 4
"""Splits share no rows if there are at least this many times as many different rows as wanted."""
BLOCK_ROWS = 1 << 10
BLOCK_NUMBERS = 1 << 22
"""Most tokens or random words that are in memory together."""
DIGEST_STREAM = (1 << 40) - 1
"""Stream of random words for hashes; rows use the streams 0, 1, … and never reach this one."""

Guess: TypeAlias = Callable[[np.ndarray], np.ndarray]
"""Maps tokens [n, l] to answers that broadcast against them."""


class Rows(NamedTuple):
    """Examples of one length."""

    tokens: Int[np.ndarray, "n l"]
    answers: Int[np.ndarray, "n l"]
    """`NOT_ASKED` at positions without a question."""


@dataclass(kw_only=True, eq=False)
class DiagnosticTask(RowsTask):
    """A base class of generated tasks; a subclass adds its options as fields, and draws rows.

    The `__post_init__` of a subclass calls `generated_as`.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    multiple: ClassVar[int] = 1
    """Every length must be a multiple of this."""

    length: int
    """Number of tokens of a row in training and validation."""
    test_length: int | None = None
    """Number of tokens of a test row; null: as in training."""
    train_examples: int = 50_000
    """Number of training rows."""
    validation_examples: int = 2000
    """Number of validation rows."""
    test_examples: int = 2000
    """Number of test rows."""
    data_seed: int = 0
    """Seed of the generated rows; the seed of a run does not change them."""

    def generated_as(self, *, vocabulary: int, difficulty: str) -> None:
        """Check the options, and set the attributes that follow from them.

        Args:
            vocabulary: Number of token ids; answers are among them.
            difficulty: The difficulty in a few words, printed next to every number.

        Raises:
            ValueError: A number is too small, or the class has no name.
        """
        if not hasattr(self, "name"):
            class_name = type(self).__name__
            raise ValueError(
                f"the class {class_name} needs an attribute `name` for rows and file names; add "
                f"for example name = {class_name.lower()!r}"
            )
        self.vocabulary, self.difficulty = vocabulary, difficulty
        common = {option.name for option in fields(DiagnosticTask)}
        names = [option.name for option in fields(self) if option.name not in common]
        self.options = {name: getattr(self, name) for name in names}
        """The options of the subclass, which decide the rows together with lengths and seed."""
        self.max_length = max(self.length, self.tested_length)
        sizes = (self.train_examples, self.validation_examples, self.test_examples)
        self.sizes = dict(zip(SPLITS, sizes, strict=True))
        numbers = {f"{split}_examples": size for split, size in self.sizes.items()} | {
            name: value for name, value in self.options.items() if isinstance(value, int)
        }
        wrong = [f"task.{name}={number}" for name, number in numbers.items() if number < 1]
        if wrong:
            raise ValueError(f"these options must be at least 1: got {', '.join(wrong)}")
        if self.data_seed < 0:
            raise ValueError(f"task.data_seed must be at least 0: got {self.data_seed}")

    def least(self, tokens: int, because: str) -> None:
        """Raise ValueError if rows have fewer than `tokens` tokens; a row consists of `because`."""
        for option, length in (("length", self.length), ("test_length", self.tested_length)):
            if length < tokens:
                raise ValueError(
                    f"task.{option} must be at least {tokens}, because a row needs {because}: got "
                    f"{length}; raise task.{option}, or lower the other options"
                )

    @abstractmethod
    def words(self, length: int) -> int:
        """Return the number of random words that decide a row of `length` tokens."""

    @abstractmethod
    def drawn(self, words: UInt64[np.ndarray, "n w"], length: int) -> Rows:
        """Return n rows of `length` tokens that the n rows of random words decide completely."""

    @abstractmethod
    def different_rows(self, length: int) -> float:
        """Return a lower bound of the binary logarithm of the number of different rows."""

    @abstractmethod
    def token_text(self, token: int) -> str:
        """Return a token as text for people."""

    @cached_property
    def spec(self) -> TaskSpec:
        """The facts about this task."""
        trained = "" if self.length == self.tested_length else f", trained at {self.length}"
        return TaskSpec(
            name=self.name,
            version=self.version,
            kind=Kind.language_modelling,
            vocabulary=self.vocabulary,
            classes=self.vocabulary,
            max_length=self.max_length,
            padded=False,
            metric="accuracy",
            source=f"generated, {self.difficulty}{trained}",
            data_hash=identity_of(
                {
                    "task": self.name,
                    "version": self.version,
                    "length": self.length,
                    "test_length": self.tested_length,
                    "sizes": self.sizes,
                    "data_seed": self.data_seed,
                    **self.options,
                }
            ),
            sizes=self.sizes,
        )

    @property
    def folder(self) -> Path:
        """Folder of the prepared data."""
        return data_root() / f"{self.name}-{self.spec.data_hash}"

    def length_of(self, split: str) -> int:
        """Return the number of tokens of a row of `split`."""
        return self.tested_length if split == "test" else self.length

    @property
    def trained_length(self) -> int:
        """Number of tokens of a training row."""
        return self.length

    @property
    def tested_length(self) -> int:
        """Number of tokens of a test row."""
        return self.length if self.test_length is None else self.test_length

    def stretched(self, factor: float) -> dict[str, object]:
        """Return the options that make test rows `factor` times as long as training rows.

        At another length a test row cannot equal a training row. Training and validation rows are
        then not needed to exclude copies, and only one of each is made.
        """
        length = max(1, round(factor * self.length / self.multiple)) * self.multiple
        if length == self.tested_length:
            return {}
        sizes = {} if length == self.length else {"train_examples": 1, "validation_examples": 1}
        return {"test_length": length, **sizes}

    def equal_work(self, examples: int, factor: float) -> int:
        """Return `examples`: a longer row is at least as much work."""
        del factor
        return examples

    def scarce(self, length: int) -> bool:
        """Return whether there are too few different rows for splits without common rows."""
        wanted = sum(size for split, size in self.sizes.items() if self.length_of(split) == length)
        return self.different_rows(length) < math.log2(ROOM * wanted)

    def copies_allowed(self, first: str, second: str) -> float:
        """Return the share of `second` that may be in `first`: 1.0 if rows are scarce, else 0.0."""
        length = self.length_of(first)
        return float(length == self.length_of(second) and self.scarce(length))

    def make(self) -> None:
        """Generate the rows and store them with their answers."""
        hashes: dict[int, set[int]] = {}
        self.write(
            {split: self._generate(split, hashes) for split in SPLITS},
            vocabulary=[self.token_text(token) for token in range(self.vocabulary)],
            options=self.options,
            length=self.length,
            test_length=self.tested_length,
            data_seed=self.data_seed,
            licence=GENERATED,
        )

    def _generate(self, split: str, hashes_by_length: dict[int, set[int]]) -> Iterator[RaggedRows]:
        """Yield the rows of `split` in blocks, without copies unless rows are scarce.

        `hashes_by_length` has the hashes of all rows so far; this function adds those of `split`.
        """
        length, missing, block = self.length_of(split), self.sizes[split], 0
        per_row = self.words(length)
        rows = rows_at_once(max(per_row, length))
        hashes = None if self.scarce(length) else hashes_by_length.setdefault(length, set())
        # Each seed and split has 2^40 streams of random words, one for each block.
        stream = (self.data_seed * len(SPLITS) + SPLITS.index(split)) << 40
        while missing:
            words = random_words(Draw.diagnostic, stream + block, rows * per_row)
            tokens, answers = self.drawn(words.reshape(rows, per_row), length)
            if hashes is None:
                chosen = np.arange(min(rows, missing))
            else:
                chosen = first_seen(tokens, hashes, missing)
            missing, block = missing - len(chosen), block + 1
            # An example is two stored sequences; stored answers are 1 larger, so 0 is no question.
            both = np.stack((tokens[chosen], answers[chosen] - NOT_ASKED), axis=1)
            yield RaggedRows(
                both.astype(np.min_scalar_type(self.vocabulary)).ravel(),
                length * np.arange(2 * len(chosen) + 1),
                np.zeros(len(chosen), np.uint8),
            )

    def visible_batch(self, batch: Batch, seed: int) -> Batch:
        """Return tokens [b, 1, l], answers [b, l] as targets, and weight 1 at questions."""
        del seed
        answers = batch.tokens[:, 1] + NOT_ASKED
        return batch._replace(
            tokens=batch.tokens[:, :1],
            target=answers.clamp(min=0),
            weight=(answers != NOT_ASKED).float(),
        )

    def tally(self, nll: Tensor, hit: Tensor, batch: Batch) -> Tally:
        """Sum the losses and hits over the questions; an example is a row."""
        return tally(nll, hit, batch, {})

    def rows(self, split: str, first: int = 0, last: int | None = None) -> Rows:
        """Return the rows `first` to `last` - 1 of a prepared split; all of them by default."""
        stored = self.split(split).tokens.reshape(-1, 2, self.length_of(split))
        both = stored[first:last].astype(np.int64)
        return Rows(both[:, 0], both[:, 1] + NOT_ASKED)

    def blocks(self, split: str) -> Iterator[Rows]:
        """Yield the rows of a prepared split in blocks that fit into memory."""
        step = rows_at_once(self.length_of(split))
        for first in range(0, self.sizes[split], step):
            yield self.rows(split, first, first + step)

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the baselines, fitted on train, that read at most the token of the question."""
        guess, best = self.habits()
        return [
            self.baseline(
                "majority",
                split,
                lambda tokens: np.full_like(tokens, guess),
                f"This baseline always answers {self.token_text(guess)}, the most frequent answer "
                "in training. A model with this score has learnt nothing.",
            ),
            self.baseline(
                "last_token",
                split,
                lambda tokens: best[tokens],
                "This baseline reads only the token of the question, and gives its most frequent "
                "answer in training. A model with this score remembers nothing.",
            ),
        ]

    def habits(self) -> tuple[int, Int[np.ndarray, " v"]]:
        """Return the most frequent answer in train, and the most frequent answer to each token.

        If two answers are equally frequent, the smaller one is returned.
        """
        pair_codes, pair_counts = [], []
        for tokens, answers in self.blocks("train"):
            scored = answers != NOT_ASKED
            pairs = tokens[scored] * self.vocabulary + answers[scored]
            codes_of_block, counts_of_block = np.unique(pairs, return_counts=True)
            pair_codes.append(codes_of_block)
            pair_counts.append(counts_of_block)
        codes, index = np.unique(np.concatenate(pair_codes), return_inverse=True)
        counts = np.bincount(index, weights=np.concatenate(pair_counts))
        token, answer = np.divmod(codes, self.vocabulary)
        guess = int(np.bincount(answer, weights=counts).argmax())
        best = np.full(self.vocabulary, guess)
        # The last assignment to a token wins, so its most frequent answer comes last.
        order = np.lexsort((-answer, counts, token))
        best[token[order]] = answer[order]
        return guess, best

    def baseline(self, name: str, split: str, guess: Guess, sentence: str) -> Baseline:
        """Return the baseline that answers `guess(tokens)`; only questions count."""
        correct = total = 0
        for tokens, answers in self.blocks(split):
            scored = answers != NOT_ASKED
            correct += int((guess(tokens) == answers)[scored].sum())
            total += int(scored.sum())
        return Baseline(name=name, accuracy=correct / total, outcomes=None, sentence=sentence)

    def describe(self, split: str, index: int) -> str:
        """Return a row as two lines of text: the tokens, and each answer below its question."""
        row, stored_answers = self.split(split).rows(np.array([index]))
        answers = (stored_answers.astype(np.int64) + NOT_ASKED).tolist()
        above = [self.token_text(token) for token in row.tolist()]
        below = ["." if answer == NOT_ASKED else self.token_text(answer) for answer in answers]
        widths = [max(len(a), len(b)) for a, b in zip(above, below, strict=True)]
        return "\n".join(
            " ".join(word.rjust(width) for word, width in zip(line, widths, strict=True))
            for line in (above, below)
        )


def rows_at_once(numbers: int) -> int:
    """Return how many rows are in memory together if each has `numbers` tokens or random words."""
    return max(1, min(BLOCK_ROWS, BLOCK_NUMBERS // numbers))


def first_seen(
    tokens: Int[np.ndarray, "n l"], hashes: set[int], most: int
) -> Int[np.ndarray, " m"]:
    """Return the indices of the first `most` rows that are new, and add their hashes to `hashes`.

    The hash of a row is the sum of its tokens times random factors, modulo 2^64. If two different
    rows have the same hash by chance, the second one is skipped.
    """
    # Factors are odd, so no bit of a token is lost.
    factors = random_words(Draw.diagnostic, DIGEST_STREAM, tokens.shape[1]) | np.uint64(1)
    digests = (tokens.astype(np.uint64) * factors).sum(1, dtype=np.uint64).tolist()
    new_rows: list[int] = []
    for row, digest in enumerate(digests):
        if len(new_rows) == most:
            break
        if digest not in hashes:
            hashes.add(digest)
            new_rows.append(row)
    return np.array(new_rows, np.int64)


def below(words: UInt64[np.ndarray, "*n"], number: int) -> Int[np.ndarray, "*n"]:
    """Return a number from 0 to `number` - 1 for each random word."""
    return (words % np.uint64(number)).astype(np.int64)


def distinct(words: UInt64[np.ndarray, "n k"], of: int) -> Int[np.ndarray, "n k"]:
    """Return k different numbers below `of` in random order, for each row of random words.

    Draws one number after the other, and swaps it to the front of the pool (Fisher-Yates).
    """
    pool = np.tile(np.arange(of, dtype=np.min_scalar_type(of)), (len(words), 1))
    rows = np.arange(len(words))
    for index in range(words.shape[1]):
        other = index + below(words[:, index], of - index)
        taken = pool[rows, other]
        pool[rows, other] = pool[:, index]
        pool[:, index] = taken
    return pool[:, : words.shape[1]].astype(np.int64)


def unit(words: UInt64[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
    """Return a number in (0, 1] for each random word."""
    return ((words >> np.uint64(11)) + 1) * 2.0**-53


def shuffled(
    words: UInt64[np.ndarray, "n *p k"], number: Int[np.ndarray, " n"]
) -> Int[np.ndarray, "n *p k"]:
    """Return 0 … `number` - 1 in random order along the last axis, and then the other numbers."""
    last = np.arange(words.shape[-1]) >= number.reshape(-1, *[1] * (words.ndim - 1))
    return np.argsort(np.where(last, np.uint64(2**64 - 1), words >> np.uint64(1)), kind="stable")
