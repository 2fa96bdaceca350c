"""Training batches without end, slow ones prepared in the background, and the time they cost."""

import hashlib
import queue
import threading
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from lra.models.mixer import Layout
from lra.tasks.task import Batch, Task

AHEAD = 4
"""Batches that are ready before they are asked for."""

WORTH_A_THREAD_S = 1e-3
"""A batch that takes less time is made between steps: a thread would cost more than it saves."""
PATIENCE = 3
"""Slow batches in a row after which the thread starts."""


class BatchPosition(NamedTuple):
    """Where a batch stands: epoch, and number within it; `after` is where to resume."""

    epoch: int
    number: int


def epoch_seed(seed: int, epoch: int) -> int:
    """Return the seed that shuffles one epoch of one run."""
    text = hashlib.sha256(f"epoch {seed} {epoch}".encode()).digest()
    return int.from_bytes(text[:7], "big")


def endless(
    task: Task, batch_size: int, seed: int, start: BatchPosition
) -> Iterator[tuple[BatchPosition, Batch]]:
    """Yield training batches, epoch after epoch, from `start` on.

    Raises:
        ValueError: an epoch holds no whole batch.
    """
    epoch, number = start
    while True:
        first = number
        for batch in task.batches(
            "train", batch_size=batch_size, seed=epoch_seed(seed, epoch), start=number
        ):
            number += 1
            yield BatchPosition(epoch, number), batch
        if number == 0 and first == 0:
            raise ValueError(
                f"the training split has fewer examples than one batch of {batch_size}; lower "
                "optim.batch_size"
            )
        epoch, number = epoch + 1, 0


class Prefetch:
    """Training batches in order, from a thread where they are slow. A context manager."""

    def __init__(self, task: Task, batch_size: int, seed: int, start: BatchPosition) -> None:
        self.waited_s = 0.0
        self._slow = 0
        self._source = endless(task, batch_size, seed, start)
        self._ready: queue.Queue[tuple[BatchPosition, Batch] | BaseException] = queue.Queue(AHEAD)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def _fill(self) -> None:
        try:
            for item in self._source:
                if not self._put(item):
                    return
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            self._put(error)

    def _put(self, item: tuple[BatchPosition, Batch] | BaseException) -> bool:
        while not self._stop.is_set():
            try:
                self._ready.put(item, timeout=0.2)
            except queue.Full:
                continue
            return True
        return False

    def next(self) -> tuple[BatchPosition, Batch]:
        """Return the next batch, with the place after it."""
        begin = time.perf_counter()
        item = next(self._source) if self._thread is None else self._ready.get()
        spent = time.perf_counter() - begin
        self.waited_s += spent
        if self._thread is None:
            self._slow = self._slow + 1 if spent > WORTH_A_THREAD_S else 0
            if self._slow == PATIENCE:
                self._thread = threading.Thread(target=self._fill, daemon=True)
                self._thread.start()
        if isinstance(item, BaseException):
            raise item
        return item

    def __enter__(self) -> "Prefetch":
        """Do nothing: the thread starts when it is worth it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return the batch with its tensors on `device`; `index` stays where it is."""
    if device.type == "cpu":
        return batch
    moved = {
        name: value.to(device, non_blocking=True)
        for name, value in batch._asdict().items()
        if value is not None and name != "index"
    }
    return batch._replace(**moved)


def masks_of(batch: Batch) -> Layout:
    """Return what a batch says of which tokens see each other."""
    return Layout(document=batch.document, prefix=batch.prefix, order=batch.order)


def rows_of(batch: Batch, rows: slice | Bool[Tensor, " b"]) -> Batch:
    """Return some rows of a batch."""
    parts = {k: v[rows] for k, v in batch._asdict().items() if v is not None}
    return batch._replace(**parts)


def first_of(batches: Iterable[Batch], examples: int) -> Iterator[Batch]:
    """Yield the rows that are among the first `examples` of their split, in the batches' order.

    By place in the split and not by order of batches, which may begin with the longest rows.

    Raises:
        ValueError: the rows of a stream are judged together.
    """
    for batch in batches:
        if batch.reset is not None:
            raise ValueError(
                "in this task a state continues from batch to batch, so the number of evaluated "
                "rows cannot be limited: set runner.examples=null, "
                "runner.validation_examples=null"
            )
        rows = batch.index < examples
        if bool(rows.all()):
            yield batch
        elif bool(rows.any()):
            yield rows_of(batch, rows)
