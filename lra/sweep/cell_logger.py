"""What a training tells a dashboard, written in a thread of its own process.

Nothing of it fails or delays the cell: every row goes to the parent first, what W&B or TensorBoard
raise is a warning, and the end of the run is written after the cell's last word.
"""

import logging
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.util import Finalize
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

from lra.reports.dashboard import keys
from lra.reports.dashboard.describe import describe
from lra.reports.dashboard.plan import plan_runs, run_id, score_of
from lra.reports.dashboard.runs import Runs, RunTarget
from lra.runners.isolation.child import status_of
from lra.runners.isolation.progress import Progress
from lra.runners.records import Cell, Interrupted, Measurement, legible, row, text_of
from lra.runners.storage.atomic import fault_of
from lra.sweep.model_names import cell_model_name

log = logging.getLogger(__name__)

EVERY_S = 1.0
"""Between two lines of numbers of a training."""
CLOSED_S = 8.0
"""How long the end of a run may take; its parent gives a process that has ended ten seconds."""
ROOM = 600 * 2**20
"""Bytes of address space that W&B and the stacks of its threads take: 535 MiB were measured."""
STOPPED, FAILED = 255, 1
"""Exit codes of runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedCell:
    """A cell that writes its own run."""

    cell: Cell
    target: RunTarget
    apart: str | None
    """Words that tell it from the other cells of its sweep, behind its title; None: unknown."""
    resumed: bool
    """Whether it goes on from a checkpoint."""


@dataclass(frozen=True, slots=True)
class _End:
    """The last message of a cell."""

    summary: dict[str, str]
    exit_code: int


@contextmanager
def logging_cell(
    logged: LoggedCell | None, send: Callable[[object], None]
) -> Iterator[Callable[[object], None]]:
    """Return what takes the cell's messages: `send`, and its dashboard behind it.

    Args:
        logged: the cell; None: it has no dashboard. Of several processes the first has it.
        send: hands a message to the parent.
    """
    if logged is None or os.environ.get("RANK", "0") != "0":
        yield send
        return
    writer = _Writer(logged)

    def tell(message: object) -> None:
        send(message)
        writer.take(message)

    try:
        yield tell
    except BaseException as error:
        writer.take(_ended(error))
        raise
    writer.take(_End({}, 0))


def numbers(message: Progress) -> dict[str, float]:
    """Return what a dashboard draws of a training's step, by its keys."""
    fields = (
        (key, name, part) for name, key in keys.TRAINING.items() for part in (message, message.step)
    )
    values = ((key, getattr(part, name, None)) for key, name, part in fields)
    return {key: float(value) for key, value in values if value is not None}


def model_of(cell: Cell) -> str:
    """Return the name of a cell's model in reports."""
    described = {
        "columns": cell.columns,
        "described": cell.described,
        "identity": cell.identity,
        "overrides": cell.overrides,
    }
    return cell_model_name(described)


class _Writer:
    """The thread that writes a cell's run, and what it is still to write."""

    def __init__(self, logged: LoggedCell) -> None:
        self.logged = logged
        self.queue: SimpleQueue[Any] = SimpleQueue()
        self.sent_at = -EVERY_S
        self.rows: list[Measurement] = []
        self.thread: threading.Thread | None = None

    def _start(self) -> None:
        """Start the thread, with the first message: somebody hears its warnings then."""
        self.thread = threading.Thread(target=self._write, name="dashboard", daemon=True)
        try:
            _make_room()
            self.thread.start()
        except (OSError, RuntimeError, ValueError) as error:  # no thread, say: the cell goes on
            _warn(error)
            return
        # Before those of queues, which writers use.
        Finalize(None, self.thread.join, args=(CLOSED_S,), exitpriority=100)

    def take(self, message: object) -> None:
        """Take a message that is to be drawn; returns at once."""
        if self.thread is None:
            self._start()
        if isinstance(message, Progress):
            if message.loss is None or time.monotonic() - self.sent_at < EVERY_S:
                return
            self.sent_at = time.monotonic()
        if isinstance(message, Progress | Measurement | _End):
            self.queue.put(message)

    def _write(self) -> None:
        try:
            self._write_run()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever W&B may raise
            try:
                _warn(error)
            except OSError:  # the cell has ended, and its pipe is closed
                return

    def _write_run(self) -> None:
        cell, target = self.logged.cell, self.logged.target
        about = describe(
            [cell.columns],
            [cell.config],
            model=model_of(cell),
            sweep=target.sweep,
            cells=[cell.key],
            apart=self.logged.apart,
        )
        runs = Runs(target)
        run = runs.open(run_id(target.sweep, cell.key), about, resumed=self.logged.resumed)
        while not isinstance(message := self.queue.get(), _End):
            if isinstance(message, Progress):
                run.log({keys.STEP_AXIS: message.done, **numbers(message)}, message.done)
                continue
            self.rows.append(message)
            if message.step is not None and message.value is not None:
                key = score_of(_worded(message))
                run.log({keys.STEP_AXIS: message.step, key: message.value}, message.step)
        run.end({**self._final(), **message.summary}, message.exit_code)
        runs.close()

    def _final(self) -> dict[str, Any]:
        """Return what the cell's rows say, by which its run is judged."""
        cell, sweep = self.logged.cell, self.logged.target.sweep
        if not self.rows:
            return {}
        rows = [row(cell, each, created="") for each in self.rows]
        about = {cell.key: {"identity": cell.identity, "config": cell.config}}
        (plan,) = plan_runs(rows, sweep=sweep, cells=about)
        return plan.summary


def _worded(message: Measurement) -> SimpleNamespace:
    labels = dict(message.labels)
    split = labels.get("split", "")
    return SimpleNamespace(metric=message.metric, labels=labels, split=split, baseline="")


def _ended(error: BaseException) -> _End:
    """Return what an exception of the work means for its run."""
    reason = legible(text_of(error)) or type(error).__name__
    if isinstance(error, Interrupted) or fault_of(error) is not None:
        return _End({keys.STATUS: "stopped", keys.REASON: reason}, STOPPED)
    return _End({keys.STATUS: str(status_of(error)), keys.REASON: reason}, FAILED)


def _warn(error: BaseException) -> None:
    """Say that the dashboard lacks something; the rows are there."""
    why = legible(text_of(error)) or type(error).__name__
    log.warning("the dashboard lacks this run, or its end: %s", why)


def _make_room() -> None:
    """Raise a limit of the address space by what the dashboard takes of it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        more = soft + ROOM
        most = more if hard == resource.RLIM_INFINITY else min(more, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
