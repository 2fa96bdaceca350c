"""Training state on disk: written whole, loaded without trust, resumed exactly."""

import io
import logging
import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

from runners import durable

log = logging.getLogger(__name__)

RESUME, PREVIOUS, WEIGHTS = "resume.pt", "resume-previous.pt", "weights.pt"
DAMAGED = (RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError, zipfile.BadZipFile)


class Checkpoints:
    """The checkpoints of one training run, in one folder; None = keep nothing."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def save(self, state: dict[str, Any]) -> None:
        """Keep `state` for resuming; the one before it stays, in case this one is damaged.

        Raises:
            runners.durable.Unwritable: full disk or missing right; the old ones are untouched.
        """
        if self.folder is None:
            return
        newest = self.folder / RESUME
        data = _bytes(state)
        if newest.exists():
            durable.write_whole(self.folder / PREVIOUS, newest.read_bytes())
        durable.write_whole(newest, data)

    def load(self) -> dict[str, Any] | None:
        """Return the newest state that can be read, or None; a damaged one is said and skipped."""
        if self.folder is None:
            return None
        for name in (RESUME, PREVIOUS):
            path = self.folder / name
            if not path.exists():
                continue
            try:
                _verify(path)
                state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            except DAMAGED as error:
                log.warning("%s cannot be read (%s); trying the one before it", path, error)
                continue
            return state
        return None

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
            _verify(path)
            found: dict[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True)
        except DAMAGED as error:
            raise ValueError(f"{path} is damaged ({error}); delete it and train again") from error
        return found

    def finish(self, weights: dict[str, torch.Tensor]) -> None:
        """Keep the final weights, and drop what was only for resuming."""
        if self.folder is None:
            return
        durable.write_whole(self.folder / WEIGHTS, _bytes(weights))
        for name in (RESUME, PREVIOUS):
            durable.remove(self.folder / name)


def _verify(path: Path) -> None:
    """Compare every stored tensor with its checksum, which `torch.load` does not do.

    Raises:
        zipfile.BadZipFile: a byte has changed since it was written.
    """
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise zipfile.BadZipFile(f"the checksum of {damaged} does not match")


def _bytes(state: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()
