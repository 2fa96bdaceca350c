"""Training states on disk: a file is written whole, and checked when it is loaded."""

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
# A lack of memory says nothing about the file.
DAMAGED = (*(kind for kind in TORN if kind is not MemoryError), pickle.UnpicklingError)
_END_BYTES, _END_BEGINS = 22, b"PK\5\6"
"""The last 22 bytes of a complete archive begin with these four, as PyTorch writes it."""


class Checkpoints:
    """The checkpoints of one training run in a folder; with None, nothing is saved."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def save(self, state: dict[str, Any]) -> None:
        """Save `state` for resuming; the state before it stays, in case the new file is damaged.

        Raises:
            runners.storage.atomic.Unwritable: the disk is full or a right is missing; the old files
                are untouched.
        """
        if self.folder is None:
            return
        newest = self.folder / RESUME
        self._move_obstacles()
        # An incomplete file is overwritten, because the state before it may be complete.
        before = self.folder / PREVIOUS if exists(newest) and _is_complete(newest) else None
        atomic.write_by(newest, partial(_write, state), before=before)

    def _move_obstacles(self) -> None:
        """Move anything that is no file but has the name of a checkpoint out of the folder."""
        assert self.folder is not None
        for path in (self.folder / name for name in (RESUME, PREVIOUS, WEIGHTS)):
            if lexists(path) and not is_file(path):
                aside = self.folder.parent / f"damaged-{time.time_ns()}-{path.name}"
                log.warning("lra moved %s to %s, because it is not a file", path, aside)
                atomic.rename(path, aside)

    def states(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Yield path and content of the states that can be read, the newest first.

        A damaged file is logged and skipped. Contents are checked elsewhere, in
        `lra.runners.training.resume`.

        Raises:
            runners.storage.atomic.StorageRefused: the system cannot read a file, which may be
                sound.
        """
        for path in self._paths():
            try:
                state = _load(path)
            except atomic.StorageRefused:
                raise
            except DAMAGED as error:
                advice = "lra tries the state that was saved before it"
                log.warning("%s cannot be read (%s); %s", path, error, advice)
                continue
            yield path, state

    def present(self) -> bool:
        """Return whether there is any state, readable or not."""
        return bool(self._paths())

    def step(self) -> int | None:
        """Return the step of the newest readable state; None if there is none."""
        for path in filter(is_file, self._paths()):
            try:  # memory-mapped, because a state may be large
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
        """Return whether the file of the final weights exists."""
        return self.folder is not None and is_file(self.folder / WEIGHTS)

    def weights(self) -> dict[str, torch.Tensor]:
        """Return the final weights.

        Raises:
            FileNotFoundError: the training is unfinished, or its weights were deleted.
            ValueError: the file is damaged.
            runners.storage.atomic.StorageRefused: the system cannot read the file, which may be
                sound.
        """
        if self.folder is None or not self.finished():
            raise FileNotFoundError(
                f"there is no finished training in {self.folder}: train the model first"
            )
        path = self.folder / WEIGHTS
        try:
            weights = _load(path)
            if not all(isinstance(value, torch.Tensor) for value in weights.values()):
                raise TypeError("the file contains values that are not tensors")
            for name, value in weights.items():
                if not value.isfinite().all():
                    raise TypeError(f"the tensor {name} contains numbers that are not finite")
        except atomic.StorageRefused:
            raise
        except DAMAGED as error:
            raise ValueError(f"{path} is damaged ({error}); delete it and train again") from error
        return weights

    def finish(self, weights: dict[str, torch.Tensor]) -> None:
        """Save the final weights, and remove the states, which are no longer needed."""
        if self.folder is None:
            return
        self._move_obstacles()
        atomic.write_by(self.folder / WEIGHTS, partial(_write, weights))
        for name in (RESUME, PREVIOUS):
            atomic.remove(self.folder / name)


def _load(path: Path) -> dict[str, Any]:
    """Return the mapping that a file stores. Raises one of `DAMAGED` if it stores anything else.

    Raises:
        runners.storage.atomic.StorageRefused: the system cannot read the file.
    """
    content = _read_or_refuse(path, lambda: persistent(_read_content, path))
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise TypeError(f"the file contains a {type(content).__name__}; wanted values by name")
    return content


def _read_content(path: Path) -> Any:
    """Return the content of an archive of PyTorch, with its tensors on the CPU."""
    with os.fdopen(plain_files.open_file(path), "rb") as file:
        check_parts(file, path)
        file.seek(0)
        try:
            return torch.load(file, map_location="cpu", weights_only=True)
        except RuntimeError as error:
            if out_of_memory(error):  # then the file may be sound
                raise MemoryError(str(error)) from error
            raise


def _is_complete(path: Path) -> bool:
    """Return whether a file has the end of an archive of PyTorch. Raises as `_read_or_refuse`."""
    end = _read_or_refuse(path, lambda: plain_files.read_end(path, _END_BYTES))
    return end.startswith(_END_BEGINS)


def _read_or_refuse(path: Path, read: Callable[[], _Read]) -> _Read:
    """Return the result of `read`. Raises OSError; `StorageRefused` if the system has a fault."""
    try:
        return read()
    except OSError as error:
        if is_fault(error):
            raise unreadable(path, error) from error
        raise


def _write(state: dict[str, Any], file: BinaryIO) -> None:
    """Write a state to an open file.

    Raises:
        OSError: writing failed; PyTorch hides this error behind a RuntimeError.
    """
    try:
        torch.save(state, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise
