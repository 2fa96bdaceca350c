"""Training state on disk: written whole, loaded without trust, resumed exactly."""

import logging
import os
import pickle
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import torch

from lra.conf import plain_files
from lra.conf.system_errors import exists, is_fault, is_file, lexists, out_of_memory, persistent
from lra.runners.storage import atomic
from lra.runners.storage.archives import TORN, check_parts
from lra.runners.storage.formats import unreadable

log = logging.getLogger(__name__)
_Read = TypeVar("_Read")

RESUME, PREVIOUS, WEIGHTS = "resume.pt", "resume-previous.pt", "weights.pt"
DAMAGED = (*(kind for kind in TORN if kind is not MemoryError), pickle.UnpicklingError)
_END_BYTES, _END_BEGINS = 22, b"PK\5\6"
"""Of an archive as PyTorch writes it."""


class Checkpoints:
    """The checkpoints of one training run, in one folder; None = keep nothing."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def save(self, state: dict[str, Any]) -> None:
        """Keep `state` for resuming; the one before it stays, in case this one is damaged.

        Raises:
            runners.storage.atomic.Unwritable: full disk or missing right; the old ones are
                untouched.
        """
        if self.folder is None:
            return
        newest = self.folder / RESUME
        self._make_way()
        # One that was torn off gives way at once: what lies before it may be whole.
        before = self.folder / PREVIOUS if exists(newest) and _ends_well(newest) else None
        atomic.write_by(newest, partial(_write, state), before=before)

    def _make_way(self) -> None:
        """Move what is no file, in a file's place, out of the folder."""
        assert self.folder is not None
        for path in (self.folder / name for name in (RESUME, PREVIOUS, WEIGHTS)):
            if lexists(path) and not is_file(path):
                aside = self.folder.parent / f"damaged-{time.time_ns()}-{path.name}"
                log.warning("%s is not a file; it was moved to %s", path, aside)
                atomic.rename(path, aside)

    def states(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Yield path and content of the states that can be read, the newest first.

        A damaged one is logged and skipped. Contents are not checked here: see
        `lra.runners.training.resume`.

        Raises:
            runners.storage.atomic.StorageRefused: one cannot be read, which says nothing of it.
        """
        for path in self._paths():
            try:
                state = _load(path)
            except atomic.StorageRefused:
                raise
            except DAMAGED as error:
                log.warning("%s cannot be read (%s); trying the one before it", path, error)
                continue
            yield path, state

    def present(self) -> bool:
        """Tell whether there is any state, readable or not."""
        return bool(self._paths())

    def step(self) -> int | None:
        """Return the step of the newest state; None where it cannot be read."""
        for path in filter(is_file, self._paths()):
            try:  # mapped, for a state may be large
                state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
                return int(state["step"])
            except DAMAGED:
                continue
        return None

    def _paths(self) -> list[Path]:
        if self.folder is None:
            return []
        return [path for name in (RESUME, PREVIOUS) if exists(path := self.folder / name)]

    def finished(self) -> bool:
        """Tell whether the final weights are there."""
        return self.folder is not None and is_file(self.folder / WEIGHTS)

    def weights(self) -> dict[str, torch.Tensor]:
        """Return the final weights.

        Raises:
            FileNotFoundError: the training was not finished, or its weights were deleted.
            ValueError: the file is damaged.
            runners.storage.atomic.StorageRefused: it cannot be read, which says nothing of it.
        """
        if self.folder is None or not self.finished():
            raise FileNotFoundError(f"no finished training in {self.folder}: train first")
        path = self.folder / WEIGHTS
        try:
            weights = _load(path)
            if not all(isinstance(value, torch.Tensor) for value in weights.values()):
                raise TypeError("it contains more than tensors")
            odd = [name for name, value in weights.items() if not value.isfinite().all()]
            if odd:
                raise TypeError(f"{odd[0]} contains numbers that are not finite")
        except atomic.StorageRefused:
            raise
        except DAMAGED as error:
            raise ValueError(f"{path} is damaged ({error}); delete it and train again") from error
        return weights

    def finish(self, weights: dict[str, torch.Tensor]) -> None:
        """Keep the final weights, and drop what was only for resuming."""
        if self.folder is None:
            return
        self._make_way()
        atomic.write_by(self.folder / WEIGHTS, partial(_write, weights))
        for name in (RESUME, PREVIOUS):
            atomic.remove(self.folder / name)


def _load(path: Path) -> dict[str, Any]:
    """Return a mapping from text; one of `DAMAGED` for anything else.

    It is read before it is judged: what the system cannot read is not damaged.
    """
    content = _asked(path, lambda: persistent(_content, path))
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise TypeError(f"it contains a {type(content).__name__}; wanted values by name")
    return content


def _content(path: Path) -> Any:
    """Return what a file holds, each tensor of which is in memory once."""
    with os.fdopen(plain_files.open_file(path), "rb") as file:
        check_parts(file, path)
        file.seek(0)
        try:
            return torch.load(file, map_location="cpu", weights_only=True)
        except RuntimeError as error:
            if out_of_memory(error):  # which says nothing of the file
                raise MemoryError(str(error)) from error
            raise


def _ends_well(path: Path) -> bool:
    """Tell whether a file ends as an archive of PyTorch does. Raises as `_asked`."""
    return _asked(path, lambda: plain_files.read_end(path, _END_BYTES)).startswith(_END_BEGINS)


def _asked(path: Path, read: Callable[[], _Read]) -> _Read:
    """Return what was read. Raises OSError: of a fault, `StorageRefused`."""
    try:
        return read()
    except OSError as error:
        if is_fault(error):
            raise unreadable(path, error) from error
        raise


def _write(state: dict[str, Any], file: BinaryIO) -> None:
    """Write a state as it lies in memory, tensor after tensor.

    Raises:
        OSError: what the file raised, which PyTorch may hide behind an error of its own.
    """
    try:
        torch.save(state, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise
