"""Open runs of W&B and TensorBoard; only this module imports these packages."""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from lra.reports.dashboard.describe import Description
from lra.reports.dashboard.keys import AXES, LENGTH_AXIS, STEP_AXIS, TRAINING_AXES
from lra.runners.records import legible

log = logging.getLogger(__name__)

INIT_S, FINISH_S = 20, 3
"""Seconds that W&B waits for its server to open a run, and to finish it."""
_FOREIGN = (
    "WANDB_RUN_ID", "WANDB_RESUME", "WANDB_NAME", "WANDB_RUN_GROUP", "WANDB_JOB_TYPE",
    "WANDB_TAGS", "WANDB_NOTES", "WANDB_SWEEP_ID", "WANDB_DIR", "WANDB_MODE", "WANDB_SERVICE",
    "WANDB_DISABLED", "WANDB_CONFIG_PATHS",
)  # fmt: skip
"""Variables of the environment that would give all runs one identity, or override options."""
_SETTINGS: dict[str, Any] = {
    "silent": True, "console": "off", "symlink": False, "disable_git": True, "save_code": False,
    "init_timeout": INIT_S,
}  # fmt: skip
_OF_AGENT = ("WANDB_RUN_ID", "WANDB_SWEEP_ID")
"""Variables by which W&B assigns a run to its sweep."""
_LONGEST = 200
"""The most characters of a reason, and of the name of a folder."""
Kind = Literal["online", "offline", "tensorboard"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTarget:
    """Where the runs of a sweep are written."""

    kind: Kind
    """`online` (W&B's server), `offline` (files of W&B) or `tensorboard`."""
    folder: Path
    """The folder `wandb` or `tensorboard` in the results folder."""
    sweep: str
    """The group of its runs."""
    project: str
    entity: str | None
    agent: str = ""
    """The id of the run that an agent of W&B has opened; "" without an agent."""


class Runs:
    """Opens runs. After a failure of the server, it writes further runs to files."""

    def __init__(self, target: RunTarget) -> None:
        self.target = target

    def open(
        self, run: str, about: Description, *, curve: bool = False, resumed: bool = False
    ) -> "WandbRun | TensorBoardRun":
        """Open the run with the id `run`.

        On the server, the run replaces an earlier one with its id, or continues it if `resumed`.
        In files, a resumed run gets a new id, because its file would replace the earlier file.

        Args:
            run: the id of the run.
            about: its name, tags and configuration.
            curve: whether its horizontal axis is the length, and not the step.
            resumed: whether an earlier run is continued.
        """
        file_id = uuid4().hex[:16] if resumed and not self.target.agent else run
        if self.target.kind == "tensorboard":
            return TensorBoardRun(self.target, file_id, about, curve=curve)
        if self.target.kind == "online":
            try:
                return WandbRun(self.target, run, about, curve=curve, resumed=resumed)
            except Exception as error:  # noqa: BLE001 - whatever W&B may raise
                self.leave_server(error)
        return WandbRun(self.target, file_id, about, curve=curve)

    def leave_server(self, error: Exception) -> None:
        """Log the error of the server, and write files from now on."""
        why = legible(str(error), _LONGEST) or type(error).__name__
        log.warning("W&B: %s; runs are written to files in %s", why, self.target.folder)
        self.target = replace(self.target, kind="offline")

    def close(self) -> None:
        """Wait until all files are written."""
        if self.target.kind != "tensorboard":
            import wandb

            wandb.teardown()  # a run's `finish` may return before its file is complete


class WandbRun:
    """A run of W&B, which opens without the variables of the environment that would change it."""

    def __init__(
        self, target: RunTarget, run: str, about: Description, *, curve: bool, resumed: bool = False
    ) -> None:
        for name in _FOREIGN:
            if not (target.agent and name in _OF_AGENT):
                os.environ.pop(name, None)
        os.environ |= {"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}
        # without this folder, W&B would write to another one
        target.folder.mkdir(parents=True, exist_ok=True)
        import wandb

        timeouts = {"finish_timeout": FINISH_S, "finish_timeout_raises": True}
        known = wandb.Settings.model_fields.keys()  # older versions lack these two settings
        self._run = wandb.init(
            id=target.agent or run,
            name=about.name,
            group=target.sweep,
            job_type=about.job_type,
            tags=about.tags,
            config=about.config,
            project=target.project,
            entity=target.entity,
            dir=str(target.folder.parent),
            mode="online" if target.kind == "online" else "offline",
            resume="allow" if resumed else None,
            settings=wandb.Settings(**(_SETTINGS | (timeouts if timeouts.keys() <= known else {}))),
        )
        for axis, metrics in (AXES if curve else TRAINING_AXES).items():
            self._run.define_metric(axis, hidden=True)
            for metric in metrics:
                self._run.define_metric(metric, step_metric=axis)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Add numbers at a step, unless the server already has this step."""
        if step >= self._run.starting_step:
            self._run.log(dict(values), step=step)

    def end(self, summary: Mapping[str, Any], exit_code: int) -> None:
        """Write final values, and finish the run."""
        self._run.summary.update(dict(summary))
        self._run.finish(exit_code=exit_code)


class TensorBoardRun:
    """A folder for TensorBoard, with numbers by optimiser step or, for a curve, by length."""

    def __init__(self, target: RunTarget, run: str, about: Description, *, curve: bool) -> None:
        from tensorboardX import SummaryWriter

        path = target.folder / _file_name(target.sweep) / f"{_file_name(about.name)} {run[:8]}"
        for old in path.glob("events.out.*"):  # files of an earlier attempt of the same runs
            old.unlink()
        self._axis, self._last = LENGTH_AXIS if curve else STEP_AXIS, 0
        self._config = about.config
        self._writer = SummaryWriter(str(path), flush_secs=5)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Add numbers at their length or, without one, at the step."""
        self._last = int(values.get(self._axis, step))
        for key, value in values.items():
            if key != self._axis:
                self._writer.add_scalar(key, value, self._last)

    def end(self, summary: Mapping[str, Any], exit_code: int) -> None:
        """Write options and final values, by which TensorBoard compares runs; finish the run."""
        from tensorboardX.summary import hparams

        del exit_code  # the summary has the status
        numbers = {k: float(v) for k, v in summary.items() if isinstance(v, (int, float))}
        texts = {k: v for k, v in summary.items() if isinstance(v, str)}
        entries = {k: v for k, v in {**self._config, **texts}.items() if v is not None}
        plain = (bool, int, float, str)
        options = {k: v if isinstance(v, plain) else str(v) for k, v in entries.items()}
        for part in hparams(options, numbers):
            self._writer.file_writer.add_summary(part)
        for key, value in numbers.items():
            self._writer.add_scalar(key, value, self._last)
        self._writer.close()


def _file_name(text: str) -> str:
    """Return a safe name of a file or folder, from the name of a sweep or a run."""
    safe = "".join(c if c.isalnum() or c in "-_.=,/ " else "-" for c in text[:_LONGEST])
    return safe.replace("..", "-").strip("./") or "sweep"
