"""Writes a training to a dashboard (W&B or TensorBoard), in a thread of the training's process.

The dashboard can neither stop nor delay the cell: every row goes to the parent process first, an
error of W&B or TensorBoard becomes a warning, and the end of the run is written last.
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
"""Least seconds between two lines of numbers of a training."""
CLOSED_S = 8.0
"""Seconds for the end of a run. The parent waits ten seconds for a process that has ended."""
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
    """What follows the title to distinguish it from other cells of its sweep; None: unknown."""
    resumed: bool
    """Whether it continues from a checkpoint."""


@dataclass(frozen=True, slots=True)
class _End:
    """The last message of a cell."""

    summary: dict[str, str]
    exit_code: int


@contextmanager
def logging_cell(
    logged: LoggedCell | None, send: Callable[[object], None]
) -> Iterator[Callable[[object], None]]:
    """Yield a function that sends a message of a cell to its parent and to its dashboard.

    `send` does the first; a cell without a dashboard has `logged` None. If the cell has several
    processes, only the first one (RANK 0) writes to the dashboard.
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
        writer.take(_end_of_error(error))
        raise
    writer.take(_End({}, 0))  # no error: nothing to add, and exit code 0


def numbers(message: Progress) -> dict[str, float]:
    """Return the numbers of a training's step that a dashboard draws, by the dashboard's keys.

    Each number is a field of the message or of its `step`; fields without a value are dropped.
    """
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
        "config": cell.config,
    }
    return cell_model_name(described)


class _Writer:
    """Writes the run of a cell to its dashboard in a thread, from a queue of messages."""

    def __init__(self, logged: LoggedCell) -> None:
        """Take a cell; the thread starts with the first message (`take`)."""
        self.logged = logged
        self.queue: SimpleQueue[Any] = SimpleQueue()
        self.sent_at = -EVERY_S  # so that the first progress is queued at once
        self.rows: list[Measurement] = []
        self.thread: threading.Thread | None = None

    def _start(self) -> None:
        """Start the thread. Called at the first message, as warnings are read from then on."""
        self.thread = threading.Thread(target=self._write, name="dashboard", daemon=True)
        try:
            _make_room()
            self.thread.start()
        except (OSError, RuntimeError, ValueError) as error:  # the cell continues
            _warn(error)
            return
        # The thread must end before the queues that W&B and TensorBoard use are closed.
        Finalize(None, self.thread.join, args=(CLOSED_S,), exitpriority=100)

    def take(self, message: object) -> None:
        """Queue a message, and return at once. Progress is queued once in `EVERY_S` seconds."""
        if self.thread is None:
            self._start()
        if isinstance(message, Progress):
            if message.loss is None or time.monotonic() - self.sent_at < EVERY_S:
                return
            self.sent_at = time.monotonic()
        if isinstance(message, Progress | Measurement | _End):
            self.queue.put(message)

    def _write(self) -> None:
        """Write the run. An error becomes a warning, because it must not stop the cell."""
        try:
            self._write_run()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever W&B may raise
            try:
                _warn(error)
            except OSError:  # the cell has ended, and its pipe is closed
                return

    def _write_run(self) -> None:
        """Open the run, write each message of the queue, and close the run after the last one."""
        cell, target = self.logged.cell, self.logged.target
        description = describe(
            [cell.columns],
            [cell.config],
            model=model_of(cell),
            sweep=target.sweep,
            cells=[cell.key],
            apart=self.logged.apart,
        )
        runs = Runs(target)
        run = runs.open(run_id(target.sweep, cell.key), description, resumed=self.logged.resumed)
        while not isinstance(message := self.queue.get(), _End):
            if isinstance(message, Progress):
                run.log({keys.STEP_AXIS: message.done, **numbers(message)}, message.done)
                continue
            self.rows.append(message)
            if message.step is not None and message.value is not None:
                key = score_of(_score_fields(message))
                run.log({keys.STEP_AXIS: message.step, key: message.value}, message.step)
        run.end({**self._summarise(), **message.summary}, message.exit_code)
        runs.close()

    def _summarise(self) -> dict[str, Any]:
        """Return the final values of the cell's rows, by the keys of a run's summary."""
        cell, sweep = self.logged.cell, self.logged.target.sweep
        if not self.rows:
            return {}
        rows = [row(cell, measured, created="") for measured in self.rows]  # the time is unused
        cells = {cell.key: {"identity": cell.identity, "config": cell.config}}
        (plan,) = plan_runs(rows, sweep=sweep, cells=cells)
        return plan.summary


def _score_fields(message: Measurement) -> SimpleNamespace:
    """Return the fields of a score from which `score_of` makes a dashboard's key."""
    labels = dict(message.labels)
    split = labels.get("split", "")
    return SimpleNamespace(metric=message.metric, labels=labels, split=split, baseline="")


def _end_of_error(error: BaseException) -> _End:
    """Return the last message of a cell that ended with `error`: status, reason, exit code."""
    reason = legible(text_of(error)) or type(error).__name__
    # After an interruption or a fault of the storage, the same cell can be run again.
    if isinstance(error, Interrupted) or fault_of(error) is not None:
        return _End({keys.STATUS: "stopped", keys.REASON: reason}, STOPPED)
    return _End({keys.STATUS: str(status_of(error)), keys.REASON: reason}, FAILED)


def _warn(error: BaseException) -> None:
    """Log that the dashboard is incomplete. The rows of the cell are stored all the same."""
    why = legible(text_of(error)) or type(error).__name__
    log.warning("this run is missing or incomplete in the dashboard: %s", why)


def _make_room() -> None:
    """Raise the limit on this process's address space by what the dashboard needs (`ROOM`)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        raised = soft + ROOM
        allowed = raised if hard == resource.RLIM_INFINITY else min(raised, hard)
        resource.setrlimit(resource.RLIMIT_AS, (allowed, hard))
