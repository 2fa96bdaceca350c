"""Training state on disk: written whole, loaded without trust, resumed exactly."""

import io
import logging
import os
import pickle
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from runners.storage import atomic
from runners.storage.archives import TORN, check_archive

log = logging.getLogger(__name__)

RESUME, PREVIOUS, WEIGHTS = "resume.pt", "resume-previous.pt", "weights.pt"
DAMAGED = (*TORN, pickle.UnpicklingError)


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
        data = _serialised(state)
        self._make_way()
        if zipfile.is_zipfile(newest):  # else it is damaged, and what lies before it may not be
            atomic.write_whole(self.folder / PREVIOUS, newest.read_bytes())
        atomic.write_whole(newest, data)

    def _make_way(self) -> None:
        """Move what is no file, in a file's place, out of the folder."""
        assert self.folder is not None
        for path in (self.folder / name for name in (RESUME, PREVIOUS, WEIGHTS)):
            if os.path.lexists(path) and not path.is_file():
                aside = self.folder.parent / f"damaged-{time.time_ns()}-{path.name}"
                log.warning("%s is no file; it lies in %s now", path, aside)
                try:
                    path.rename(aside)
                except OSError as error:
                    raise atomic.unwritable(path, error) from error

    def states(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Yield path and content of the states that can be read, the newest first.

        A damaged one is logged and skipped. Contents are not checked here: see
        `runners.training.resume`.
        """
        for path in self._paths():
            try:
                state = _load(path)
            except DAMAGED as error:
                log.warning("%s cannot be read (%s); trying the one before it", path, error)
                continue
            yield path, state

    def present(self) -> bool:
        """Tell whether there is any state, readable or not."""
        return bool(self._paths())

    def step(self) -> int | None:
        """Return the step of the newest state; None where it cannot be read."""
        for path in filter(Path.is_file, self._paths()):
            try:  # mapped, for a state may be large
                state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
                return int(state["step"])
            except DAMAGED:
                continue
        return None

    def _paths(self) -> list[Path]:
        if self.folder is None:
            return []
        return [path for name in (RESUME, PREVIOUS) if (path := self.folder / name).exists()]

    def finished(self) -> bool:
        """Tell whether the final weights are there."""
        return self.folder is not None and (self.folder / WEIGHTS).is_file()

    def weights(self) -> dict[str, torch.Tensor]:
        """Return the final weights.

        Raises:
            FileNotFoundError: the training was not finished, or its weights were deleted.
            ValueError: the file is damaged.
        """
        if self.folder is None or not self.finished():
            raise FileNotFoundError(f"no finished training in {self.folder}: train first")
        path = self.folder / WEIGHTS
        try:
            weights = _load(path)
            if not all(isinstance(value, torch.Tensor) for value in weights.values()):
                raise TypeError("it holds more than tensors")
            odd = [name for name, value in weights.items() if not value.isfinite().all()]
            if odd:
                raise TypeError(f"{odd[0]} holds numbers that are not finite")
        except DAMAGED as error:
            raise ValueError(f"{path} is damaged ({error}); delete it and train again") from error
        return weights

    def finish(self, weights: dict[str, torch.Tensor]) -> None:
        """Keep the final weights, and drop what was only for resuming."""
        if self.folder is None:
            return
        self._make_way()
        atomic.write_whole(self.folder / WEIGHTS, _serialised(weights))
        for name in (RESUME, PREVIOUS):
            atomic.remove(self.folder / name)


def _load(path: Path) -> dict[str, Any]:
    """Return a mapping from text; one of `DAMAGED` for anything else."""
    check_archive(path)
    content = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise TypeError(f"it holds a {type(content).__name__}; wanted a mapping from text")
    return content


def _serialised(state: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()
