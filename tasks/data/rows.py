"""Tasks whose examples are stored rows: planned, padded, and shown to the model."""

from collections.abc import Iterable, Iterator

import numpy as np
from jaxtyping import Int

from lra.tasks.data.batching import Draw, Piece, collate, plan_epoch
from lra.tasks.data.masking import words_of
from lra.tasks.data.stored_task import StoredTask
from lra.tasks.task import Batch


class RowsTask(StoredTask):
    """One example, one or more stored sequences; a kind of task adds how answers are judged."""

    max_length: int
    bucket_batches: int | None = 1
    """Training batches that are formed together by length; None: see `lra.tasks.data.batching`."""
    shift: int = 0
    """Added to every stored token."""
    padded_length: int | None = None
    """Tokens of every row of a batch, padding included; None = of the batch's longest row."""
    cut: Piece = Piece.first
    """Which tokens are kept of rows longer than `max_length`."""

    def examples(self, split: str) -> int:
        """Return the number of examples of a split."""
        return len(self.split(split).targets)

    def lengths(self, split: str) -> Int[np.ndarray, " n"]:
        """Return the tokens of every example of a split, of its longest sequence."""
        sizes: np.ndarray = np.minimum(self.split(split).lengths, self.max_length)
        return sizes

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

        `batch_size` is the rows of one rank: all ranks together yield what one rank with
        `batch_size * ranks` yields.
        """
        data = self.split(split)
        plan = plan_epoch(
            np.minimum(data.lengths, self.max_length),
            train=split == "train",
            batch_size=batch_size,
            seed=seed,
            bucket_batches=self.bucket_batches,
            rank=rank,
            ranks=ranks,
        )
        # What is drawn for evaluation is drawn once and for all.
        return self.read(split, plan[start:], seed if split == "train" else 0)

    def read(self, split: str, plan: Iterable[Int[np.ndarray, " _"]], seed: int) -> Iterator[Batch]:
        """Yield a batch for each entry of a plan: what a model sees of these examples.

        Baselines read here too, so that they see what a model sees, and no more.
        """
        data = self.split(split)
        drawn = self.cut is Piece.random or (self.cut is not Piece.first and split == "train")
        for rows in plan:
            words = None
            if drawn:
                (words,) = words_of(data.sequences(rows), 1, seed=seed, draw=Draw.offset).T
            batch = collate(
                data,
                rows,
                max_length=self.max_length,
                shift=self.shift,
                padded_length=self.padded_length,
                words=words,
            )
            yield self.visible_batch(batch, seed)

    def visible_batch(self, batch: Batch, seed: int) -> Batch:
        """Return a batch of stored tokens as the model sees it.

        Args:
            batch: Padded rows.
            seed: Of what a task draws for each row, with the row's index.
        """
        del seed
        return batch
