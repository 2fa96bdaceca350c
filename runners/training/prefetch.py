"""Endless training batches; a background thread prepares them if that is slow."""

import hashlib
import queue
import threading
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lra.models.backbone.heads import asked_items
from lra.models.mixer import Layout
from lra.tasks.task import Batch, Task

AHEAD = 4
"""The thread prepares at most so many batches in advance."""

WORTH_A_THREAD_S = 1e-3
"""A batch that takes less time is prepared between steps, because a thread would be slower."""
PATIENCE = 3
"""The thread starts after so many slow batches in a row."""


class BatchPosition(NamedTuple):
    """A position between two batches, from which a training can resume."""

    epoch: int
    number: int
    """Number of batches of this epoch before the position."""


def epoch_seed(seed: int, epoch: int) -> int:
    """Return the seed that shuffles one epoch of a run with this seed."""
    text = hashlib.sha256(f"epoch {seed} {epoch}".encode()).digest()
    return int.from_bytes(text[:7], "big")  # a seed of PyTorch has less than 8 bytes


def endless(
    task: Task, batch_size: int, seed: int, start: BatchPosition
) -> Iterator[tuple[BatchPosition, Batch]]:
    """Yield training batches from `start` on, epoch after epoch, each with the position after it.

    Raises:
        ValueError: the training split has no whole batch.
    """
    epoch, number = start
    while True:
        first = number
        for batch in task.batches(
            "train", batch_size=batch_size, seed=epoch_seed(seed, epoch), start=number
        ):
            number += 1
            yield BatchPosition(epoch, number), batch
        if number == 0 and first == 0:  # a whole epoch had no batch
            raise ValueError(
                f"the training split has fewer examples than one batch of {batch_size}; lower "
                "optim.batch_size"
            )
        epoch, number = epoch + 1, 0


class Prefetch:
    """Gives training batches in order in a `with` block; a thread prepares slow batches."""

    def __init__(self, task: Task, batch_size: int, seed: int, start: BatchPosition) -> None:
        self.waited_s = 0.0  # seconds that the training waited for batches
        self._slow = 0  # slow batches in a row
        self._source = endless(task, batch_size, seed, start)
        self._ready: queue.Queue[tuple[BatchPosition, Batch] | BaseException] = queue.Queue(AHEAD)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def _fill(self) -> None:
        """Put batches into the queue until the context ends; this runs in the thread."""
        try:
            for item in self._source:
                if not self._put(item):
                    return
        except BaseException as error:  # noqa: BLE001 - `next` raises it in the main thread
            self._put(error)

    def _put(self, item: tuple[BatchPosition, Batch] | BaseException) -> bool:
        """Put an item into the queue. Returns False if the context ends before there is room."""
        while not self._stop.is_set():
            try:
                self._ready.put(item, timeout=0.2)
            except queue.Full:
                continue
            return True
        return False

    def next(self) -> tuple[BatchPosition, Batch]:
        """Return the next batch, and the position after it."""
        start = time.perf_counter()
        item = next(self._source) if self._thread is None else self._ready.get()
        spent_s = time.perf_counter() - start
        self.waited_s += spent_s
        if self._thread is None:
            self._slow = self._slow + 1 if spent_s > WORTH_A_THREAD_S else 0
            if self._slow == PATIENCE:
                self._thread = threading.Thread(target=self._fill, daemon=True)
                self._thread.start()
        if isinstance(item, BaseException):
            raise item
        return item

    def __enter__(self) -> "Prefetch":
        """Return this object; the thread starts later, if batches are slow."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return the batch with its tensors on `device`, except `index`, which stays on the CPU."""
    if device.type == "cpu":
        return batch
    moved = {
        name: value.to(device, non_blocking=True)
        for name, value in batch._asdict().items()
        if value is not None and name != "index"
    }
    return batch._replace(**moved)


def masks_of(batch: Batch) -> Layout:
    """Return the masks of a batch (which tokens attend to each other), and its conditions.

    If the model has a generator, the batch also decides its samples.
    """
    return Layout(
        document=batch.document, prefix=batch.prefix, order=batch.order, uniform=batch.uniform,
        masked_per_row=batch.masked_per_row, condition=batch.condition,
    )  # fmt: skip


def asked_of(batch: Batch, device: torch.device) -> Int[Tensor, " n"] | None:
    """Return the items of a batch whose weight is not 0, as numbers in the flattened target.

    None: all items. If the batch is on the CPU, nothing waits for `device`, which gets the result.
    """
    asked = asked_items(batch.weight)
    return None if asked is None else asked.to(device, non_blocking=True)


def rows_of(batch: Batch, rows: slice | Bool[Tensor, " b"]) -> Batch:
    """Return a batch with some of the rows of `batch`: a slice, or those where `rows` is True."""
    parts = {k: v[rows] for k, v in batch._asdict().items() if v is not None}
    return batch._replace(**parts)


def first_of(batches: Iterable[Batch], examples: int) -> Iterator[Batch]:
    """Yield, batch by batch, the rows that are among the first `examples` of their split.

    The position in the split counts (`Batch.index`), because batches may begin with long rows.

    Raises:
        ValueError: a state continues from batch to batch, so no row may be dropped.
    """
    for batch in batches:
        if batch.reset is not None:
            raise ValueError(
                "a state continues from batch to batch in this task, so lra must evaluate all "
                "rows: set runner.examples=null, runner.validation_examples=null"
            )
        rows = batch.index < examples
        if bool(rows.all()):
            yield batch
        elif bool(rows.any()):
            yield rows_of(batch, rows)
