"""Majority: which symbol stands more often?

    1 0 1 1 0      -> 1

Tokens are drawn one by one; of an odd number of them one symbol is the more frequent. Generated
here; no licence is needed.
"""

from functools import cached_property
from pathlib import Path

import numpy as np

from lra.tasks.classification.base import ClassificationTask
from lra.tasks.data.sources import data_root
from lra.tasks.data.storage import from_rows
from lra.tasks.data.stored_task import identity_of
from lra.tasks.task import SPLITS, Kind, TaskSpec


class Majority(ClassificationTask):
    """The task; see the module's text.

    Args:
        length: Tokens of a row, an odd number.
        train_examples: Training rows.
        validation_examples: Validation rows.
        test_examples: Test rows.
        data_seed: Of the rows.
    """

    def __init__(
        self,
        *,
        length: int = 63,
        train_examples: int = 10000,
        validation_examples: int = 1000,
        test_examples: int = 1000,
        data_seed: int = 0,
    ) -> None:
        if length % 2 == 0 or length < 1:
            raise ValueError(f"task.length={length}: wanted an odd number, as 63")
        self.max_length, self.data_seed = length, data_seed
        self.sizes = dict(
            zip(SPLITS, (train_examples, validation_examples, test_examples), strict=True)
        )

    @cached_property
    def spec(self) -> TaskSpec:
        """The facts."""
        facts = {"length": self.max_length, "sizes": self.sizes, "seed": self.data_seed}
        return TaskSpec(
            name="majority",
            version=1,
            kind=Kind.classification,
            vocabulary=2,
            classes=2,
            max_length=self.max_length,
            padded=False,
            metric="accuracy",
            source="generated",
            data_hash=identity_of(facts),
            sizes=self.sizes,
        )

    @property
    def folder(self) -> Path:
        """Where the prepared data lie."""
        return data_root() / f"majority-{self.spec.data_hash}"

    def make(self) -> None:
        """Draw the rows and store them."""
        generator = np.random.default_rng(self.data_seed)
        splits = {}
        for split, size in self.sizes.items():
            rows = generator.integers(0, 2, (size, self.max_length), dtype=np.uint8)
            ones = rows.sum(1, dtype=int)
            splits[split] = from_rows([*rows], (2 * ones > self.max_length).astype(np.uint8))
        self.write(splits)
