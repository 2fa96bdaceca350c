"""The base of generated tasks whose rows are real numbers, and whose answer is one number."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
from jaxtyping import Float32, Shaped, UInt64

from lra.tasks.data.batching import Draw, random_words
from lra.tasks.data.examples import tally
from lra.tasks.data.rows import RowsTask
from lra.tasks.data.sources import data_root
from lra.tasks.data.storage import RaggedRows
from lra.tasks.data.stored_task import GENERATED, identity_of
from lra.tasks.diagnostics.draws import rows_at_once
from lra.tasks.task import SPLITS, Baseline, Batch, Kind, Tally, TaskSpec
from lra.tasks.tensors import Tensor


@dataclass(kw_only=True, eq=False)
class NumberRows(RowsTask):
    """A base class; a subclass draws rows, and its `__post_init__` calls `numbers_of`."""

    name: ClassVar[str]
    version: ClassVar[int] = 1

    length: int = 200
    """Number of tokens of a row in training and validation."""
    test_length: int | None = None
    """Number of tokens of a test row; null: as in training."""
    train_examples: int = 45_000
    """Number of training rows."""
    validation_examples: int = 5000
    """Number of validation rows."""
    test_examples: int = 2000
    """Number of test rows."""
    data_seed: int = 0
    """Seed of the generated rows; the seed of a run does not change them."""

    def numbers_of(
        self,
        channels: int,
        *,
        least: int,
        because: str,
        options: Mapping[str, object],
        difficulty: str = "",
    ) -> None:
        """Check the options, and set the attributes that follow from them.

        Args:
            channels: Numbers of each token.
            least: Fewest tokens of a row.
            because: Why a row needs so many, for the message about short rows.
            options: The options of the subclass, which decide the rows with lengths and seed.
            difficulty: These options in a few words, printed next to every number.
        """
        self.channels, self.options, self.difficulty = channels, options, difficulty
        tested = self.length if self.test_length is None else self.test_length
        self.lengths_of = {"train": self.length, "validation": self.length, "test": tested}
        self.max_length = max(self.length, tested)
        sizes = (self.train_examples, self.validation_examples, self.test_examples)
        self.sizes = dict(zip(SPLITS, sizes, strict=True))
        for name, length in (("length", self.length), ("test_length", tested)):
            if length < least:
                raise ValueError(
                    f"task.{name} must be at least {least}, because {because}: got {length}"
                )
        for split, size in self.sizes.items():
            if size < 1:
                raise ValueError(f"task.{split}_examples must be at least 1: got {size}")
        if self.data_seed < 0:
            raise ValueError(f"task.data_seed must be at least 0: got {self.data_seed}")

    @abstractmethod
    def words(self, length: int) -> int:
        """Return the number of random words that decide a row of `length` tokens."""

    @abstractmethod
    def drawn(
        self, words: UInt64[np.ndarray, "n w"], length: int
    ) -> tuple[Float32[np.ndarray, "n l c"], Float32[np.ndarray, " n"]]:
        """Return n rows of `length` tokens that random words decide, and their answers."""

    @cached_property
    def spec(self) -> TaskSpec:
        """The facts about this task."""
        lengths = self.lengths_of
        facts = {"task": self.name, "version": self.version, "data_seed": self.data_seed}
        same = lengths["train"] == lengths["test"]
        trained = "" if same else f"trained at {self.length}"
        return TaskSpec(
            name=self.name, version=self.version, kind=Kind.regression, vocabulary=0, classes=1,
            max_length=self.max_length, padded=False, scalars=True, channels=self.channels,
            metric="mse", source=", ".join(filter(None, ("generated", self.difficulty, trained))),
            data_hash=identity_of(
                {**facts, "lengths": lengths, "sizes": self.sizes, **self.options}
            ),
            sizes=self.sizes,
        )  # fmt: skip

    @property
    def folder(self) -> Path:
        """Folder of the prepared data."""
        return data_root() / f"{self.name}-{self.spec.data_hash}"

    def make(self) -> None:
        """Generate the rows and store them with their answers."""
        self.write({split: self._generate(split) for split in SPLITS}, licence=GENERATED)

    def _generate(self, split: str) -> Iterator[RaggedRows]:
        """Yield the rows of a split in blocks, each from a stream of random words."""
        length, size = self.lengths_of[split], self.sizes[split]
        stream = (self.data_seed * len(SPLITS) + SPLITS.index(split)) << 40
        step, per_row = rows_at_once(2 * length), self.words(length)
        for number, first in enumerate(range(0, size, step)):
            rows = min(step, size - first)
            words = random_words(Draw.diagnostic, stream + number, rows * per_row)
            tokens, answers = self.drawn(words.reshape(rows, per_row), length)
            offsets = self.channels * length * np.arange(rows + 1)
            yield RaggedRows(tokens.ravel(), offsets, answers)

    def tally(self, nll: Tensor, hit: Tensor, batch: Batch) -> Tally:
        """Sum the squared errors of the rows."""
        return tally(nll, hit, batch)

    def rows(self, split: str) -> Float32[np.ndarray, "n l c"]:
        """Return the tokens of a prepared split."""
        return self.split(split).tokens.reshape(self.sizes[split], -1, self.channels)


def error_of(name: str, errors: Shaped[np.ndarray, " n"], sentence: str) -> Baseline:
    """Return the baseline with these errors."""
    squares = float(np.square(errors, dtype=np.float64).mean())
    return Baseline(name, None, None, sentence, {"mse": squares})
