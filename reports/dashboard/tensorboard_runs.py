"""Runs for TensorBoard: a folder each, by the same keys as those of W&B. Needs tensorboardX."""

import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from lra.conf.plain_files import read_bytes
from lra.reports.dashboard.backend import Backend, OpenRun
from lra.reports.dashboard.describe import Description
from lra.reports.dashboard.keys import LENGTH_AXIS, STEP_AXIS
from lra.reports.dashboard.plan import RunPlan, file_name

EVERY_S = 5
"""At most so long until a number is in its file."""
_ABOUT = ("status", "reason")
_FILES = "events.out.*"
_LONGEST = 200
"""Characters of a run's name in the name of its folder."""


class TensorBoardRun(OpenRun):
    """One run: scalars over optimiser steps or, of a curve of cost, over the length."""

    def __init__(
        self, path: Path, about: Description, axis: str, there: set[tuple[float, str]]
    ) -> None:
        from tensorboardX import SummaryWriter

        self.path, self.there = path, there
        self.steps = int(max((step for step, _ in there), default=-1)) + 1
        self._axis, self._last = axis, 0
        self._config = dict(about.config)
        self._summary: dict[str, Any] = {}
        # A file is named by the second, and would empty the one before it if opened in the same.
        number = len(list(path.glob(_FILES)))
        self._writer = SummaryWriter(
            str(path), flush_secs=EVERY_S, filename_suffix=f".{number:04d}"
        )

    def log(self, values: Mapping[str, float], step: int, *, last: bool = False) -> None:
        """Add numbers at their place on the axis."""
        del last  # each number is written by itself
        self._last = place = int(values.get(self._axis, step))
        for key, value in values.items():
            if key != self._axis:
                self._writer.add_scalar(key, value, place)

    def complete(self, plan: RunPlan) -> None:
        """Take over what the stored rows say."""
        self._config |= plan.config
        self._summary |= plan.summary

    def end(self, summary: Mapping[str, Any], exit_code: int) -> None:
        """Write the options and final values by which TensorBoard compares runs, and finish."""
        del exit_code  # the status says it
        final = self._summary | dict(summary)
        numbers = {k: float(v) for k, v in final.items() if isinstance(v, (int, float))}
        words = {k: str(v) for k, v in final.items() if isinstance(v, str)}
        options = {k: _plain(v) for k, v in {**self._config, **words}.items() if v is not None}
        from tensorboardX.summary import hparams

        for part in hparams(options, numbers):
            self._writer.file_writer.add_summary(part)
        for key, value in numbers.items():
            self._writer.add_scalar(key, value, self._last)
        for name in _ABOUT:
            if name in words:
                self._writer.add_text(name, words[name])
        self._writer.close()


def _plain(value: Any) -> bool | float | str:
    return value if isinstance(value, (bool, int, float, str)) else str(value)


class TensorBoardRuns(Backend):
    """Opens runs below a folder that `tensorboard --logdir` shows."""

    mode = "offline"

    def __init__(self, job: Mapping[str, Any]) -> None:
        # tensorboardX would import torch, for tensors that nobody gives it here
        sys.modules.setdefault("torch", cast("ModuleType", None))
        import tensorboardX  # noqa: F401 - whose absence is to be known at once

        self._job = job

    def check(self) -> str:
        """There is nothing to reach."""
        return ""

    def open(
        self,
        run: str,
        about: Description,
        *,
        curve: bool,
        process: int | None,
        before: Path | None,
    ) -> TensorBoardRun:
        """Open a run, or go on with it in another file of its folder."""
        del process  # TensorBoard draws nothing of the machine
        place = "".join(c if c.isalnum() or c in "-_.=,/ " else "-" for c in about.name[:_LONGEST])
        place = place.replace("..", "-")
        sweep = Path(self._job["folder"]) / file_name(self._job["sweep"])
        path = before or sweep / f"{place} {run[:8]}"
        if before is None:
            for old in path.glob(_FILES):
                old.unlink()
        return TensorBoardRun(path, about, LENGTH_AXIS if curve else STEP_AXIS, _there(path))

    def finish(self) -> None:
        """Every file is whole when its run has ended."""


def _there(folder: Path) -> set[tuple[float, str]]:
    """Return the steps and keys that the files of a run have.

    A file holds records: length, check sum, an event, its check sum.
    """
    from tensorboardX.proto.event_pb2 import Event

    written = set()
    for file in folder.glob(_FILES):
        try:
            data, at = read_bytes(file), 0
        except OSError:  # no file, in its place
            continue
        while at + 12 <= len(data):
            (size,) = struct.unpack_from("<Q", data, at)
            payload = data[at + 12 : at + 12 + size]
            at += 16 + size
            if at > len(data):  # torn
                break
            try:
                event = Event.FromString(payload)
            except Exception:  # noqa: BLE001 - protobuf's own, which has no types: damaged
                break
            written |= {(float(event.step), value.tag) for value in event.summary.value}
    return written
