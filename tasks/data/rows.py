"""The base of tasks with stored rows as examples: it makes batches of them."""

from collections.abc import Iterable, Iterator

import numpy as np
from jaxtyping import Int

from lra.tasks.data.batching import Draw, Piece, collate, plan_epoch
from lra.tasks.data.masking import words_of
from lra.tasks.data.storage import RaggedRows
from lra.tasks.data.stored_task import StoredTask
from lra.tasks.task import Batch


class RowsTask(StoredTask):
    """A task in which an example is one or more stored sequences; subclasses score the answers."""

    max_length: int
    bucket_batches: int | None = 1
    """Number of training batches whose examples are sorted by length together; None: no sorting."""
    shift: int = 0
    """Added to every stored token."""
    channels: int = 1
    """Stored numbers of a token; from 2 on, tokens have a last axis of this size."""
    padded_length: int | None = None
    """Number of tokens to which rows are padded; None: those of the longest row of each batch."""
    cut: Piece = Piece.first
    """Which tokens a model reads of rows longer than `max_length`."""

    def examples(self, split: str) -> int:
        """Return the number of examples of a split."""
        return len(self.split(split).targets)

    def lengths(self, split: str) -> Int[np.ndarray, " n"]:
        """Return the number of tokens in the longest sequence of every example of `split`."""
        return self._lengths(self.split(split))

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
        """Yield one epoch of `split`, from this rank's batch number `start` on.

        `batch_size` is the number of rows of one rank. All ranks together yield the rows that one
        rank with `batch_size * ranks` rows yields.
        """
        data = self.split(split)
        plan = plan_epoch(
            self._lengths(data),
            train=split == "train",
            batch_size=batch_size,
            seed=seed,
            bucket_batches=self.bucket_batches,
            rank=rank,
            ranks=ranks,
        )
        # Evaluation always draws the same, so it uses a fixed seed.
        return self.read(split, plan[start:], seed if split == "train" else 0)

    def read(self, split: str, plan: Iterable[Int[np.ndarray, " _"]], seed: int) -> Iterator[Batch]:
        """Yield a batch, as a model reads it, of the example numbers in each entry of `plan`.

        Baselines use this function, too, so that they read the same. `seed` decides random pieces.
        """
        data = self.split(split)
        random = self.cut is Piece.random or (self.cut is not Piece.first and split == "train")
        for rows in plan:
            words = None
            if random:
                (words,) = words_of(data.sequences(rows), 1, seed=seed, draw=Draw.offset).T
            batch = collate(
                data,
                rows,
                max_length=self.max_length * self.channels,
                shift=self.shift,
                padded_length=self.padded_length,
                words=words,
            )
            if self.channels > 1:
                batch = batch._replace(
                    tokens=batch.tokens.reshape(*batch.tokens.shape[:2], -1, self.channels)
                )
            yield self.visible_batch(batch, seed)

    def _lengths(self, data: RaggedRows) -> Int[np.ndarray, " n"]:
        """Return the number of tokens that a model reads of each example."""
        lengths: np.ndarray = np.minimum(data.lengths // self.channels, self.max_length)
        return lengths

    def visible_batch(self, batch: Batch, seed: int) -> Batch:
        """Return a batch of stored tokens as the model reads it; here unchanged.

        `seed`, together with a row's index, decides what a subclass draws for the row.
        """
        del seed
        return batch
