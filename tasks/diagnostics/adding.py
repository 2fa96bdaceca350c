"""The adding problem (Hochreiter & Schmidhuber 1997): the sum of two marked numbers.

    numbers   .31 .87 .02 .55 .90 .14 .66 .73      uniform in [0, 1)
    markers     0   1   0   0   0   0   1   0      one in each half of the row
    answer                              .87 + .66 = 1.53

A token has two channels, number and marker, and the answer is one real number, judged by its
squared error. Always answering 1 has 1/6, reading the second marked number alone 1/12, and papers
call the problem solved below `SOLVED`. A model must carry one number over many tokens and ignore
the others; it looks nothing up by content.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Shaped, UInt64

from lra.conf.choices import by_name
from lra.tasks.data.batching import Draw, random_words
from lra.tasks.data.examples import tally
from lra.tasks.data.rows import RowsTask
from lra.tasks.data.sources import data_root
from lra.tasks.data.storage import RaggedRows
from lra.tasks.data.stored_task import GENERATED, identity_of
from lra.tasks.diagnostics.draws import below, rows_at_once
from lra.tasks.task import SPLITS, Baseline, Batch, Kind, Tally, TaskSpec
from lra.tasks.tensors import Tensor

VERSION = 1
SOLVED = 0.01
"""A mean squared error."""
NUMBER_BITS = 24
"""Random bits of a number, which float32 stores exactly."""


@by_name
@dataclass(kw_only=True, eq=False)
class Adding(RowsTask):
    """Add the two marked numbers of a row."""

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

    def __post_init__(self) -> None:
        """Check the options."""
        self.channels = 2
        tested = self.length if self.test_length is None else self.test_length
        self.lengths_of = {"train": self.length, "validation": self.length, "test": tested}
        self.max_length = max(self.length, tested)
        sizes = (self.train_examples, self.validation_examples, self.test_examples)
        self.sizes = dict(zip(SPLITS, sizes, strict=True))
        for name, length in (("length", self.length), ("test_length", tested)):
            if length < 2:
                raise ValueError(
                    f"task.{name} must be at least 2, because each half of a row has a marked "
                    f"number: got {length}"
                )
        for split, size in self.sizes.items():
            if size < 1:
                raise ValueError(f"task.{split}_examples must be at least 1: got {size}")
        if self.data_seed < 0:
            raise ValueError(f"task.data_seed must be at least 0: got {self.data_seed}")

    @cached_property
    def spec(self) -> TaskSpec:
        """The facts about this task."""
        lengths = self.lengths_of
        facts = {"task": "adding", "version": VERSION, "data_seed": self.data_seed}
        same = lengths["train"] == lengths["test"]
        return TaskSpec(
            name="adding", version=VERSION, kind=Kind.regression, vocabulary=0, classes=1,
            max_length=self.max_length, padded=False, scalars=True, channels=self.channels,
            metric="mse", source="generated" + ("" if same else f", trained at {self.length}"),
            data_hash=identity_of({**facts, "lengths": lengths, "sizes": self.sizes}),
            sizes=self.sizes,
        )  # fmt: skip

    @property
    def folder(self) -> Path:
        """Folder of the prepared data."""
        return data_root() / f"adding-{self.spec.data_hash}"

    def make(self) -> None:
        """Generate the rows and store them with their answers."""
        self.write({split: self._generate(split) for split in SPLITS}, licence=GENERATED)

    def _generate(self, split: str) -> Iterator[RaggedRows]:
        """Yield the rows of a split in blocks, each from a stream of random words."""
        length, size = self.lengths_of[split], self.sizes[split]
        stream = (self.data_seed * len(SPLITS) + SPLITS.index(split)) << 40
        step = rows_at_once(2 * length)
        for number, first in enumerate(range(0, size, step)):
            rows = min(step, size - first)
            words = random_words(Draw.diagnostic, stream + number, rows * (length + 2))
            tokens, answers = adding_rows(words.reshape(rows, length + 2))
            yield RaggedRows(tokens.ravel(), 2 * length * np.arange(rows + 1), answers)

    def tally(self, nll: Tensor, hit: Tensor, batch: Batch) -> Tally:
        """Sum the squared errors of the rows."""
        return tally(nll, hit, batch)

    def rows(self, split: str) -> Float32[np.ndarray, "n l 2"]:
        """Return the tokens of a prepared split."""
        return self.split(split).tokens.reshape(self.sizes[split], -1, self.channels)

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the errors of answers that need no memory."""
        answers, tokens = self.split(split).targets, self.rows(split)
        half = tokens.shape[1] // 2
        second = tokens[:, half:].prod(-1).sum(1)  # the marked number of the second half
        return [
            _baseline("always_one", answers - 1, "This baseline always answers 1, the mean of all "
                      "answers. A model with this error has learnt nothing."),
            _baseline("second_marker", answers - second - 0.5, "This baseline adds 0.5 to the "
                      "second marked number. A model with this error remembers nothing."),
        ]  # fmt: skip

    def describe(self, split: str, index: int) -> str:
        """Return a row as two lines of text, numbers above markers, and its answer."""
        numbers, markers = self.rows(split)[index].T
        above = " ".join(f"{number:.3f}" for number in numbers)
        below_it = " ".join("  *  " if marked else "     " for marked in markers).rstrip()
        return f"{above}\n{below_it}\n-> {self.split(split).targets[index]:.3f}"


def adding_rows(
    words: UInt64[np.ndarray, "n w"],
) -> tuple[Float32[np.ndarray, "n l 2"], Float32[np.ndarray, " n"]]:
    """Return rows of l = w - 2 tokens and their answers; the last two words place the markers."""
    number, length = len(words), words.shape[1] - 2
    tokens = np.zeros((number, length, 2), np.float32)
    tokens[..., 0] = (words[:, :length] >> np.uint64(64 - NUMBER_BITS)) * 2.0**-NUMBER_BITS
    half, rows = length // 2, np.arange(number)
    first, second = below(words[:, -2], half), half + below(words[:, -1], length - half)
    tokens[rows, first, 1] = tokens[rows, second, 1] = 1
    return tokens, tokens[rows, first, 0] + tokens[rows, second, 0]


def _baseline(name: str, errors: Shaped[np.ndarray, " n"], sentence: str) -> Baseline:
    """Return the baseline with these errors."""
    squares = float(np.square(errors, dtype=np.float64).mean())
    return Baseline(name, None, None, sentence, {"mse": squares})
