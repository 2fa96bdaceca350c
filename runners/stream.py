"""Training batches without end, prepared in the background, and the time spent waiting for them."""

import hashlib
import queue
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import NamedTuple

import torch

from tasks.task import Batch, Task

AHEAD = 4
"""Batches that are ready before they are asked for."""


class Place(NamedTuple):
    """Where a batch stands: epoch, and number within it; `after` is where to resume."""

    epoch: int
    number: int


def epoch_seed(seed: int, epoch: int) -> int:
    """Return the seed that shuffles one epoch of one run."""
    text = hashlib.sha256(f"epoch {seed} {epoch}".encode()).digest()
    return int.from_bytes(text[:7], "big")


def endless(task: Task, batch_size: int, seed: int, start: Place) -> Iterator[tuple[Place, Batch]]:
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
            yield Place(epoch, number), batch
        if number == 0 and first == 0:
            raise ValueError(
                f"the training split has fewer examples than one batch of {batch_size}; lower "
                "optim.batch_size"
            )
        epoch, number = epoch + 1, 0


class Prefetch:
    """Batches from a thread: overlap of data work with the step. A context manager."""

    def __init__(self, task: Task, batch_size: int, seed: int, start: Place) -> None:
        self.waited_s = 0.0
        self._ready: queue.Queue[tuple[Place, Batch] | BaseException] = queue.Queue(AHEAD)
        self._stop = threading.Event()
        source = endless(task, batch_size, seed, start)
        self._thread = threading.Thread(target=self._fill, args=(source,), daemon=True)

    def _fill(self, source: Iterator[tuple[Place, Batch]]) -> None:
        try:
            for item in source:
                if not self._put(item):
                    return
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            self._put(error)

    def _put(self, item: tuple[Place, Batch] | BaseException) -> bool:
        while not self._stop.is_set():
            try:
                self._ready.put(item, timeout=0.2)
            except queue.Full:
                continue
            return True
        return False

    def next(self) -> tuple[Place, Batch]:
        """Return the next batch, with the place after it."""
        begin = time.perf_counter()
        item = self._ready.get()
        self.waited_s += time.perf_counter() - begin
        if isinstance(item, BaseException):
            raise item
        return item

    def __enter__(self) -> "Prefetch":
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the thread."""
        self._stop.set()
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


def rows_of(batch: Batch, rows: slice) -> Batch:
    """Return some rows of a batch."""
    parts = {k: v[rows] for k, v in batch._asdict().items() if v is not None}
    return batch._replace(**parts)
