"""The base of diagnostic tasks: generated rows of tokens, with questions at some positions.

    tokens   k3 v7 k5 v2 k5 k1 k3 v9      the model reads the tokens up to each position
    answers   .  .  .  . v2  . v7  .      a dot marks a position without a question

An answer need not be the next token of the row; with `loss=all`, training also asks for the next
token at positions without a question. Training and validation rows have `length` tokens, or from
`min_length` to `length`; test rows have `test_length`, or each of `test_lengths`. A model can so be
trained on short rows and tested on long ones.

Splits have no row in common, unless there are fewer than `ROOM` times as many different rows of a
length as needed. Rows of such a length are drawn independently in each split, and `copies_allowed`
returns their share. With `train_examples=null`, each training batch has new rows, which the seed of
the run and the number of the batch decide; a row may then equal one of another split by chance.
"""

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum, auto
from functools import cached_property, partial
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
from jaxtyping import Int, UInt64

from lra.tasks.data.batching import Draw, check_ranks, collate, random_words
from lra.tasks.data.sources import data_root
from lra.tasks.data.storage import RaggedRows
from lra.tasks.data.stored_task import GENERATED, identity_of
from lra.tasks.data.tokens import next_tokens
from lra.tasks.diagnostics.asked_rows import AskedRows
from lra.tasks.diagnostics.draws import (
    NOT_ASKED as NOT_ASKED,  # noqa: PLC0414  # handed on
    Rows as Rows,  # noqa: PLC0414
    below as below,  # noqa: PLC0414
    distinct as distinct,  # noqa: PLC0414
    first_seen,
    rows_at_once,
    rows_of_lengths,
)
from lra.tasks.task import SPLITS, Batch, Kind, TaskSpec
from lra.tasks.tensors import Tensor, torch

ROOM = 4
"""Splits share no rows if there are at least this many times as many different rows as wanted."""
EPOCH = 10_000
"""Training rows of an epoch if each batch has new ones. As many are stored for the baselines."""
COUNTED = 64
"""Rows whose questions are counted, to forecast the time of a run."""
CHANCE_BITS = 20
"""Two splits share no rows by chance if that has a probability below 2 to the power of this."""


class Loss(StrEnum):
    """Which tokens training predicts; evaluation always judges the answers alone."""

    answers = auto()
    """The answers."""
    all = auto()
    """The answers, and the next token at every position without a question."""


@dataclass(kw_only=True, eq=False)
class DiagnosticTask(AskedRows):
    """A base class of generated tasks; a subclass adds its options as fields, and draws rows.

    The `__post_init__` of a subclass calls `generated_as`. A subclass whose length follows from
    other options declares `length: int = field(init=False)`, and sets it before.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    multiple: ClassVar[int] = 1
    """Every length must be a multiple of this."""
    task_kind: ClassVar[Kind] = Kind.language_modelling
    """What a model predicts."""
    padded: ClassVar[bool] = False
    """Whether rows of one `length` may have fewer tokens (`Rows.sizes`)."""
    later: ClassVar[frozenset[str]] = frozenset()
    """Options that decide rows only if they differ from their defaults: they came later."""
    scores: ClassVar[frozenset[str]] = frozenset()
    """Further scores; see `TaskSpec.scores`."""

    length: int
    """Number of tokens of a row in training and validation."""
    min_length: int | None = None
    """Smallest number of tokens of a row in training and validation; each length from this to
    `length` is equally frequent. null: all rows have `length` tokens."""
    test_length: int | None = None
    """Number of tokens of a test row; null: as in training."""
    test_lengths: list[int] | None = None
    """Several numbers of tokens of test rows, with `test_examples` rows each; null: one."""
    loss: Loss = Loss.answers
    """Tokens that training predicts: answers, or all."""
    train_examples: int | None = 50_000
    """Number of training rows; null: new rows in every batch."""
    validation_examples: int = 2000
    """Number of validation rows."""
    test_examples: int = 2000
    """Number of test rows."""
    data_seed: int = 0
    """Seed of the generated rows; with stored rows, the seed of a run does not change them."""

    def generated_as(self, *, vocabulary: int, difficulty: str) -> None:
        """Check the options, and set the attributes that follow from them.

        Args:
            vocabulary: Number of token ids that `drawn` uses, from 0 on; answers are among them.
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
        self.largest_stored = vocabulary  # it decides the type of stored rows
        common = {option.name for option in fields(DiagnosticTask)}
        common |= self.incidental
        own = [option for option in fields(self) if option.name not in common and option.init]
        self.options = {
            option.name: getattr(self, option.name)
            for option in own
            if option.name not in self.later or getattr(self, option.name) != option.default
        }
        """The options of the subclass, which decide the rows together with lengths and seed."""
        self._check_numbers()
        lengths = [*self.lengths_of("train"), *self.lengths_of("test")]
        self.max_length = max(map(self.row_size, lengths))
        # Two of `test_lengths` may have the same next length of which there are rows.
        tested = len(self.lengths_of("test")) * self.test_examples
        self.sizes = self._known_sizes() | {"test": tested}
        # Rows of several lengths are padded with id 0, so all other ids are 1 larger.
        self.shift = int(self.padded or self.varies)

    def _known_sizes(self) -> dict[str, int]:
        """Return the options for numbers of rows, by split, without train if it has no end."""
        sizes = (self.train_examples, self.validation_examples, self.test_examples)
        return {split: n for split, n in zip(SPLITS, sizes, strict=True) if n is not None}

    def _check_numbers(self) -> None:
        """Raise ValueError for a number of rows or tokens that is too small, or lists of them."""
        numbers = {f"{split}_examples": size for split, size in self._known_sizes().items()} | {
            name: value
            for name, value in self.options.items()
            if isinstance(value, int) and not isinstance(value, bool)
        }
        wrong = [f"task.{name}={number}" for name, number in numbers.items() if number < 1]
        if wrong:
            raise ValueError(f"these options must be at least 1: got {', '.join(wrong)}")
        if self.data_seed < 0:
            raise ValueError(f"task.data_seed must be at least 0: got {self.data_seed}")
        if self.min_length is not None and not 1 <= self.min_length <= self.length:
            raise ValueError(
                f"task.min_length must be from 1 to task.length={self.length}, or null for rows of "
                f"one length: got {self.min_length}"
            )
        if self.test_lengths is not None:
            if self.test_length is not None:
                raise ValueError(
                    f"got task.test_length={self.test_length} and task.test_lengths="
                    f"{self.test_lengths}: set one of them to null"
                )
            if not self.test_lengths or min(self.test_lengths) < 1:
                raise ValueError(
                    f"task.test_lengths must be lengths of at least 1, for example [64,128], or "
                    f"null: got {self.test_lengths}"
                )
            if len({*self.test_lengths}) < len(self.test_lengths):
                raise ValueError(f"task.test_lengths has a length twice: {self.test_lengths}")

    def least(self, tokens: int, because: str) -> None:
        """Raise ValueError if rows have fewer than `tokens` tokens; a row consists of `because`."""
        shortest = self.length if self.min_length is None else self.min_length
        tested = {"test_length": self.tested_length}
        if self.test_lengths is not None:
            tested = {"test_lengths": min(self.test_lengths)}
        name = "length" if self.min_length is None else "min_length"
        for option, length in ({name: shortest} | tested).items():
            if length < tokens:
                raise ValueError(
                    f"task.{option} must be at least {tokens}, because a row needs {because}: got "
                    f"{length}; raise task.{option}, or lower the other options"
                )

    @property
    def varies(self) -> bool:
        """Whether the rows of a split have several lengths."""
        return self.min_length not in (None, self.length) or len(self.test_lengths or ()) > 1

    @property
    def fresh(self) -> bool:
        """Whether each training batch has new rows."""
        return self.train_examples is None

    @abstractmethod
    def words(self, length: int) -> int:
        """Return the number of random words that decide a row of `length` tokens."""

    @abstractmethod
    def drawn(self, words: UInt64[np.ndarray, "n w"], length: int) -> Rows:
        """Return n rows of `length` tokens that the n rows of random words decide completely.

        If `padded` is True, rows may have fewer tokens.
        """

    def drawn_for(self, split: str, words: UInt64[np.ndarray, "n w"], length: int) -> Rows:
        """Return `drawn` for a split; override it if test rows differ from training rows."""
        del split
        return self.drawn(words, length)

    @abstractmethod
    def different_rows(self, length: int) -> float:
        """Return a lower bound of the binary logarithm of the number of different rows."""

    def allowed_length(self, length: int) -> int:
        """Return the next length, from `length` on, of which there are rows."""
        return -(-length // self.multiple) * self.multiple

    def row_size(self, length: int) -> int:
        """Return the number of tokens of a row of `length`, if the option counts only some."""
        return length

    def longest_row(self, split: str) -> int:
        """Return the number of tokens of the longest row of a split."""
        return max(map(self.row_size, self.lengths_of(split)))

    @property
    def chance(self) -> float:
        """Accuracy of a guess, if `scores` has scaled_accuracy."""
        return 0.0

    def groups(self, batch: Batch) -> Mapping[str, Int[Tensor, "b l"]]:
        """Return a number for each position of a batch, by name: scores are also told by these.

        Rows of several lengths have the group `length`.
        """
        if not self.varies or batch.keep is None:
            length = batch.index.new_tensor(batch.tokens.shape[-1])
            return {"length": length.expand(batch.target.shape)} if self.varies else {}
        return {"length": batch.keep.sum(-1).expand(batch.target.shape)}

    @cached_property
    def spec(self) -> TaskSpec:
        """The facts about this task."""
        tested, facts = self.lengths_of("test"), self._added_facts()
        trained = "" if self.lengths_of("train") == tested else f", trained at {self._told_length}"
        return TaskSpec(
            name=self.name,
            version=self.version,
            kind=self.task_kind,
            vocabulary=self.vocabulary + self.shift,
            classes=self.vocabulary + self.shift,
            max_length=self.max_length,
            padded=bool(self.shift),
            metric="accuracy",
            scores=frozenset({"exact_match"}) | self.scores,
            chance=self.chance,
            source=f"generated, {self.difficulty}{trained}"
            + (", new rows in each batch" if self.fresh else "")
            + (", loss of all tokens" if self.loss is Loss.all else ""),
            data_hash=identity_of(
                {
                    "task": self.name,
                    "version": self.version,
                    "length": self.length,
                    "test_length": self.tested_length,
                    "sizes": self.sizes,
                    "data_seed": self.data_seed,
                    **facts,
                    **self.options,
                }
            ),
            sizes=self.sizes,
        )

    @property
    def _told_length(self) -> str:
        """The lengths of training rows in words."""
        return (
            str(self.length) if self.min_length is None else f"{self.min_length} to {self.length}"
        )

    def _added_facts(self) -> dict[str, object]:
        """Return the options of this class that came after the first rows, unless at defaults."""
        added = {
            "min_length": self.min_length,
            "test_lengths": self.test_lengths,
            "loss": None if self.loss is Loss.answers else self.loss,
        }
        return {name: value for name, value in added.items() if value is not None}

    @property
    def folder(self) -> Path:
        """Folder of the prepared data."""
        return data_root() / f"{self.name}-{self.spec.data_hash}"

    def lengths_of(self, split: str) -> list[int]:
        """Return the lengths of the rows of `split`, each equally frequent."""
        if split == "test":
            several = self.test_lengths or [self.tested_length]
        else:
            several = [*range(self.min_length or self.length, self.length + 1)]
        return list(dict.fromkeys(self.allowed_length(length) for length in several))

    @property
    def trained_length(self) -> int:
        """Number of tokens of the longest training row."""
        return self.length

    @property
    def tested_length(self) -> int:
        """Number of tokens of the longest test row."""
        if self.test_lengths is not None:
            return max(self.test_lengths)
        return self.length if self.test_length is None else self.test_length

    def stretched(self, factor: float) -> dict[str, object]:
        """Return the options that make test rows `factor` times as long as training rows.

        At another length a test row cannot equal a training row. Training and validation rows are
        then not needed to exclude copies, and only one of each is made.
        """
        multiples = max(1, round(factor * self.length / self.multiple))
        length = self.allowed_length(multiples * self.multiple)
        if [length] == self.lengths_of("test"):
            return {}
        sizes = {} if length == self.length else {"train_examples": 1, "validation_examples": 1}
        several = {} if self.test_lengths is None else {"test_lengths": None}
        return {"test_length": length, **several, **sizes}

    def equal_work(self, examples: int, factor: float) -> int:
        """Return `examples`: a longer row is at least as much work."""
        del factor
        return examples

    def scarce(self, length: int) -> bool:
        """Return whether there are too few different rows of `length` for splits without copies."""
        wanted = 0.0
        for split in SPLITS:
            if length in (lengths := self.lengths_of(split)):
                wanted += self.sizes.get(split, EPOCH) / len(lengths)
        return self.different_rows(length) < math.log2(ROOM * wanted)

    def copies_allowed(self, first: str, second: str) -> float:
        """Return the share of `second` that may be in `first`: that of rows of scarce lengths.

        New training rows may also equal a row of another split by chance.
        """
        common = {*self.lengths_of(first)} & {*self.lengths_of(second)}
        allowed = {length for length in common if self.scarce(length)}
        if self.fresh and first == "train":
            pairs = math.log2(EPOCH * self.sizes[second])
            allowed |= {n for n in common if self.different_rows(n) < pairs + CHANCE_BITS}
        if not allowed or not self.varies:
            return float(bool(allowed))
        if self.padded:  # stored rows do not tell the length of which they were drawn
            return 1.0
        return float(np.isin(self.lengths(second), [*map(self.row_size, allowed)]).mean())

    def make(self) -> None:
        """Generate the rows and store them with their answers."""
        hashes: dict[int, set[int]] = {}
        texts = [self.token_text(token) for token in range(self.vocabulary)]
        self.write(
            {split: self._generate(split, hashes) for split in SPLITS},
            vocabulary=["padding", *texts] if self.shift else texts,
            options=self.options,
            length=self.length,
            test_length=self.tested_length,
            data_seed=self.data_seed,
            licence=self.licence,
        )

    @property
    def licence(self) -> str:
        """Licence of the rows, in the manifest."""
        return GENERATED

    def _generate(self, split: str, hashes_by_length: dict[int, set[int]]) -> Iterator[RaggedRows]:
        """Yield the rows of `split` in blocks, without copies unless rows are scarce.

        `hashes_by_length` has the hashes of all rows so far; this function adds those of `split`.
        """
        # Each seed and split has 2^40 streams of random words, one for each block.
        stream = (self.data_seed * len(SPLITS) + SPLITS.index(split)) << 40
        for task, lengths, size in self._parts(split):
            rows, scarce = task._rows_at_once(lengths), [n for n in lengths if self.scarce(n)]
            missing = size
            while missing:
                found = task._draw(split, lengths, Draw.diagnostic, stream, rows)
                found = found.take(self._unseen(found, lengths, scarce, hashes_by_length, missing))
                missing, stream = missing - len(found.tokens), stream + 1
                yield found.stored(self.largest_stored)

    def _parts(self, split: str) -> Iterator[tuple[Self, list[int], int]]:
        """Yield the parts of `split` in order: what draws a part, its lengths, and its rows."""
        lengths = self.lengths_of(split)
        parts = [[length] for length in lengths] if split == "test" else [lengths]
        for part in parts:
            yield self, part, self.sizes.get(split, EPOCH) // len(parts)

    def count_questions(self, split: str) -> tuple[float, int] | None:
        """Return the mean and the largest number of questions of some rows like those of a split.

        None: training asks for all tokens.
        """
        if split == "train" and self.loss is Loss.all:
            return None
        most, total, rows = 0, 0.0, 0
        for task, lengths, size in self._parts(split):
            few = min(COUNTED, task._rows_at_once(lengths))
            answers = task._draw(split, lengths, Draw.sample, 0, few).answers
            asked = (answers != NOT_ASKED).sum(1)
            most, total = max(most, int(asked.max())), total + size * float(asked.mean())
            rows += size
        return total / rows, most

    def _rows_at_once(self, lengths: list[int]) -> int:
        """Return how many rows of these lengths are in memory together."""
        return rows_at_once(max(max(self.words(n), self.row_size(n)) for n in lengths))

    def _draw(self, split: str, lengths: list[int], draw: Draw, stream: int, rows: int) -> Rows:
        """Return rows whose lengths are drawn from `lengths`, from a stream of random words."""
        per_row = max(map(self.words, lengths))
        if len(lengths) == 1:
            words = random_words(draw, stream, rows * per_row).reshape(rows, per_row)
            return self.drawn_for(split, words, lengths[0])
        words = random_words(draw, stream, rows * (1 + per_row)).reshape(rows, 1 + per_row)
        return rows_of_lengths(words, np.array(lengths), self.words, partial(self.drawn_for, split))

    def _unseen(
        self,
        rows: Rows,
        lengths: list[int],
        scarce: list[int],
        hashes_by_length: dict[int, set[int]],
        most: int,
    ) -> Int[np.ndarray, " m"]:
        """Return the numbers of at most `most` rows that are new, or of one of `scarce` lengths."""
        if not self.shift:
            (length,) = lengths
            if scarce:
                return np.arange(min(len(rows.tokens), most))
            return first_seen(rows.tokens, hashes_by_length.setdefault(length, set()), most)
        # Behind the end of a row there is nothing to add, so one set has rows of all lengths.
        tokens = (rows.tokens + 1) * rows.real()
        new = first_seen(tokens, hashes_by_length.setdefault(0, set()), len(tokens))
        longest = self.row_size(max(lengths))
        sizes = rows.real().sum(1) if not self.padded else np.full(len(tokens), longest)
        accepted = np.isin(sizes, [*map(self.row_size, scarce)])
        accepted[new] = True
        return np.flatnonzero(accepted)[:most]

    def batches(
        self,
        split: str,
        *,
        batch_size: int,
        seed: int,
        rank: int = 0,
        ranks: int = 1,
        start: int = 0,
    ) -> Iterator[Batch]:
        """Yield one epoch of `split`, from this rank's batch number `start` on; see `Task`.

        An epoch of new rows has about `EPOCH` of them, and another seed gives other rows.
        """
        if split != "train" or not self.fresh:
            sizes = {"batch_size": batch_size, "rank": rank, "ranks": ranks}
            return super().batches(split, seed=seed, start=start, **sizes)
        check_ranks(batch_size=batch_size, rank=rank, ranks=ranks)
        together, lengths = batch_size * ranks, self.lengths_of(split)
        part = slice(rank, None, ranks)
        fresh = (
            self._fresh_batch(lengths, seed, number, together, part)
            for number in range(start, max(1, EPOCH // together))
        )
        return self._asking(split, (self.visible_batch(batch, seed) for batch in fresh))

    def _fresh_batch(
        self, lengths: list[int], seed: int, number: int, rows: int, part: slice
    ) -> Batch:
        """Return a part of batch `number` of new rows, as they would be stored."""
        stream = (((self.data_seed << 64) + seed) << 40) + number
        found = self._draw("train", lengths, Draw.fresh, stream, rows).take(np.arange(rows)[part])
        index = np.arange(len(found.tokens))
        batch = collate(
            found.stored(self.largest_stored), index, max_length=self.max_length, shift=self.shift
        )
        return batch._replace(index=torch.from_numpy(number * rows + np.arange(rows)[part]))

    def read(self, split: str, plan: Iterable[Int[np.ndarray, " _"]], seed: int) -> Iterator[Batch]:
        """Yield the batches of a plan as a model reads them; training may predict all tokens."""
        return self._asking(split, super().read(split, plan, seed))

    def _asking(self, split: str, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield batches of `split`, which ask for all tokens if training predicts them."""
        predicts_all = split == "train" and self.loss is Loss.all
        return map(next_tokens, batches) if predicts_all else batches

    def examples(self, split: str) -> int:
        """Return the number of examples of a split; of new ones, those of an epoch."""
        return EPOCH if split == "train" and self.fresh else super().examples(split)
