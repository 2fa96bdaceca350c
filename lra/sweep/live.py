"""What a sweep tells a dashboard while its cells run: see `lra.reports.dashboard.live`."""

import os
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra.composition.run import Logger, LoggerMode
from lra.composition.runner_class import runner_of
from lra.reports.dashboard import keys
from lra.reports.dashboard.describe import group
from lra.runners.isolation.progress import Begun, Progress
from lra.runners.records import Cell, Measurement
from lra.runners.storage import writers
from lra.sweep.agent import agent_of
from lra.sweep.model_names import cell_model_name
from lra.sweep.sweep import SweepCells
from lra.sweep.titles import title
from lra.tasks.data.leftovers import hold, remove_left

if TYPE_CHECKING:
    from lra.reports.dashboard import live

EVERY_S = 1.0
"""Between two lines of numbers of one training."""
STAGED = ".live.*.tmp"
"""Folders of what is to be sent."""
INIT_S, FINISH_S = 20.0, 15.0
"""How long a server may take to take a run in, and what is left of it at its end."""
CHECKED_S, CLOSED_S, STOPPED_S = 8.0, 30.0, 8.0
"""How long the first cell waits for the answer to whether the server is there, and a sweep for its
last lines: at its end, and at one that a signal asked for."""


class LiveSweep:
    """Events of cells, on their way to a dashboard; nothing where there is none.

    Where several workers share a sweep, each writes the runs of the cells that have one of their
    own, as trainings have. Curves and baselines, whose cells many workers share, are written once
    the sweep is complete.
    """

    def __init__(
        self,
        sweep: SweepCells,
        waiting: Sequence[Cell] = (),
        *,
        shared: bool = False,
        unreachable: str = "",
    ) -> None:
        """Start the process that writes, which tries key and server at once.

        Args:
            sweep: what is run.
            waiting: its cells that are to be run; of a shared sweep nobody knows them.
            shared: whether other workers run cells of the sweep: `begin` starts the process then.
            unreachable: why the server cannot be reached, where that is known: nothing tries it.
        """
        self.sweep, self.shared = sweep, shared
        self.unreachable = unreachable
        self.agent = None if shared else agent_of(sweep)
        self.runs: live.LiveRuns | None = None
        self.fault = ""
        """Why the process that writes could not be started."""
        self.sent_at: dict[str, float] = {}
        self.timed = any(runner_of(cell).timed for cell in waiting)
        if waiting:
            self._start({cell.key for cell in waiting})

    def begin(self, cell: Cell) -> str:
        """Start the process that writes, with the first cell of a shared sweep that it is for.

        Returns:
            What a person should know, as `check`.
        """
        if self.runs is not None or self.fault or not self._writes(cell):
            return ""
        self._start(())
        return self.check()

    def _writes(self, cell: Cell) -> bool:
        """Tell whether the events of a cell are written here."""
        return not self.shared or group_of(cell) == cell.key

    def _start(self, to_do: Collection[str]) -> None:
        sweep, logger = self.sweep, self.sweep.logger
        if logger.mode is LoggerMode.disabled:
            return
        from lra.reports.dashboard.live import LiveRuns

        folder = folder_of(sweep)
        online = logger.mode is LoggerMode.online and not self.unreachable
        job = {
            "kind": "tensorboard" if logger.mode is LoggerMode.tensorboard else "wandb",
            "mode": "online" if online else "offline",
            "project": logger.project,
            "entity": logger.entity,
            "folder": str(folder),
            "dir": str(folder.parent if folder.name == "wandb" else folder),
            "root": str(sweep.root.resolve()),
            "sweep": sweep.name,
            "init_timeout_s": INIT_S,
            "finish_timeout_s": FINISH_S,
            "alone": self.shared,
            "agent": None if self.agent is None else self.agent._asdict(),
            "cells": [about_cell(cell, waiting=cell.key in to_do) for cell in sweep.cells],
        }
        try:
            staged, lock = _staged(folder / "data") if job["kind"] == "wandb" else (None, None)
            try:
                self.runs = LiveRuns(job, folder, "lra.sweep.live_process", staged, lock)
            finally:
                if lock is not None:
                    os.close(lock)  # the process that writes has it
        except OSError as error:  # no room, no right: rows are what matters
            self.fault = str(error)

    def check(self) -> str:
        """Return what a person should know before the first cell, or "".

        Waits for the answer of a server and, where cells are timed, until the process has started.
        """
        if self.fault:
            return f"{self._name} gets nothing while cells run: {self.fault}"
        if self.runs is None:
            return ""
        online = self.sweep.logger.mode is LoggerMode.online
        if online or self.timed:
            self.runs.wait_until_ready(CHECKED_S)
        if self.runs.failed:
            return f"{self._name} gets nothing while cells run: {self.runs.failed}"
        if self.runs.offline:
            return f"W&B: {self.runs.offline.rstrip('.')}; its runs go into {folder_of(self.sweep)}"
        if online and not self.runs.ready:
            return f"W&B: not ready after {CHECKED_S:g} s; the cells do not wait for it"
        return ""

    @property
    def _name(self) -> str:
        return name_of(self.sweep.logger)

    def message(self, cell: Cell, message: object) -> None:
        """Pass on what a cell's process has sent."""
        if self.runs is None or not self._writes(cell):
            return
        if isinstance(message, Begun):
            self.runs.put(self._event("begun", cell) | {"process": message.process})
        elif isinstance(message, Progress) and message.loss is not None:
            now = time.monotonic()
            if now - self.sent_at.get(cell.key, -EVERY_S) >= EVERY_S:
                self.sent_at[cell.key] = now
                values = numbers(message)
                self.runs.put(
                    {"event": "progress", "cell": cell.key, "step": message.done, "values": values}
                )
        elif isinstance(message, Measurement) and None not in (message.step, message.value):
            self.runs.put(
                {
                    "event": "row",
                    "cell": cell.key,
                    "metric": message.metric,
                    "value": message.value,
                    "step": message.step,
                    "labels": dict(message.labels),
                }
            )

    def _event(self, event: str, cell: Cell) -> dict[str, Any]:
        kind = runner_of(cell)
        config: Mapping[str, Any] = cell.config
        described = {
            "columns": cell.columns,
            "described": cell.described,
            "identity": cell.identity,
            "overrides": cell.overrides,
        }
        about = {
            "identity": cell.identity,
            "config": config,
            "model": cell_model_name(described) if kind.models else "baselines",
            "apart": title_suffix(self.sweep, cell),
            "curve": kind.by_length,
            "trains": kind.trains and not kind.timed,
        }
        planned = {"planned": about_cell(cell, waiting=True)} if self.shared else {}
        return {"event": event, "cell": cell.key, "about": about, **planned}

    def ended(self, cell: Cell, status: str, reason: str = "", *, wait: bool = False) -> None:
        """Pass on that the rows of a cell are stored: drop it without room, or `wait` for it."""
        if self.runs is not None and self._writes(cell):
            event = self._event("ended", cell) | {"status": status, "reason": reason}
            (self.runs.hand if wait else self.runs.put)(event)

    def left(self, cell: Cell, reason: str) -> None:
        """Pass on that a cell stays without rows here, for now."""
        if self.runs is not None and self._writes(cell):
            self.runs.put({"event": "left", "cell": cell.key, "reason": reason})

    @property
    def dropped(self) -> int:
        """How many events were left out because the process that writes fell behind."""
        return 0 if self.runs is None or self.runs.failed else self.runs.dropped

    @property
    def goes_on(self) -> bool:
        """Whether the process that writes is there, to write what a finished sweep has besides."""
        return self.runs is not None and self.runs.alive

    def settle(self) -> None:
        """End the runs of all cells; the process that writes waits for the report."""
        if self.runs is not None:
            self.runs.settle(CLOSED_S)

    def close(self, seconds: float | None = None) -> None:
        """End the process that writes, after so many seconds at most; None: as many as usual."""
        if self.runs is not None:
            self.runs.close(CLOSED_S if seconds is None else seconds)


def _staged(folder: Path) -> tuple[Path, int]:
    """Return a folder for what one process is to send to W&B, and its lock; others write beside it.

    Those of processes that were killed are removed: the kernel has freed their locks.
    """
    for left in folder.glob(STAGED):
        remove_left(left)
    while True:  # until nobody takes it for a leftover before it is held
        staged = writers.temporary(folder / "live")
        staged.mkdir(parents=True)
        if (lock := hold(staged, os.O_RDONLY)) is not None:
            return staged, lock


def folder_of(sweep: SweepCells) -> Path:
    """Return where a sweep's logger writes."""
    return dashboard_folder(sweep.root, sweep.logger)


def dashboard_folder(root: Path, logger: Logger) -> Path:
    """Return where a logger writes, below the results."""
    name = "tensorboard" if logger.mode is LoggerMode.tensorboard else "wandb"
    return root.resolve() / name


def name_of(logger: Logger) -> str:
    """Return what people call a logger's dashboard."""
    return "TensorBoard" if logger.mode is LoggerMode.tensorboard else "W&B"


def title_suffix(sweep: SweepCells, cell: Cell) -> str | None:
    """Return the words that tell a cell from the others of its sweep, behind its title."""
    short_title, whole = title(cell), sweep.titles.get(cell.key, "")
    return whole.removeprefix(short_title) if whole.startswith(short_title) else None


def numbers(message: Progress) -> dict[str, float]:
    """Return what a dashboard draws of a training, by its keys."""
    step = message.step
    values: dict[str, float | None] = {
        keys.STEP_LOSS: message.loss,
        keys.LEARNING_RATE: message.learning_rate,
        keys.TIME_LEFT_S: message.left_s,
    }
    if step is not None:
        values |= {
            keys.GRADIENT_NORM: step.gradient_norm,
            keys.EXAMPLES_PER_S: step.examples_per_s,
            keys.TOKENS_PER_S: step.tokens_per_s,
            keys.STEP_TIME_S: step.step_time_s,
            keys.DATA_WAIT_SHARE: step.data_wait_share,
            keys.PROCESS_BYTES: step.process_bytes,
            keys.GPU_BYTES: step.gpu_bytes,
        }
    return {key: float(value) for key, value in values.items() if value is not None}


def about_cell(cell: Cell, *, waiting: bool) -> dict[str, Any]:
    """Return what the process that writes has to know of a cell."""
    columns = dict(cell.columns)
    return {"cell": cell.key, "group": group_of(cell), "columns": columns, "waiting": waiting}


def group_of(cell: Cell) -> str:
    """Return what is the same for the cells of one run: the key of one that has its own."""
    kind = runner_of(cell)
    return group(cell.key, cell.identity, baseline=not kind.models, curve=kind.by_length)
