"""The executor of cells: runs what a plan gives in processes of their own, and stores the ends.

`lra run` has a plan in memory, `lra work` one that is stored and that other workers share.
"""

import math
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from lra.composition.class_path import named_plugins
from lra.composition.runner_class import runner_of
from lra.errors import ConfigError
from lra.runners.isolation import isolate
from lra.runners.isolation.places import Places, Taken, place_facts, words
from lra.runners.isolation.progress import Event, Progress
from lra.runners.measurement.hardware import Device, HardwareProfile, available_bytes
from lra.runners.records import DISTURBED, Cell, Measurement, Outcomes, Status
from lra.runners.runner import Probe
from lra.runners.storage.atomic import StorageFault, fault_of
from lra.runners.storage.claims import Claim
from lra.runners.storage.index import RowsIndex
from lra.runners.store import Store
from lra.runners.training.checkpoint import Checkpoints
from lra.sweep.batch_check import check_batch
from lra.sweep.cells import compare_cells, environment, marks, run_cell
from lra.sweep.places import processes
from lra.sweep.planned_cells import NO_DATA, failure_row, known_ending, reference_shares, remains
from lra.sweep.stored_weights import stored_training
from lra.sweep.sweep import PlannedCell, SweepOutcome
from lra.sweep.sweep_logger import SweepLogger
from lra.tasks.errors import BadData, NotPrepared
from lra.tasks.task import Task, remarks_of
from lra.terminal.board import SAVED, STOPPED, ProgressBoard
from lra.terminal.progress import failure, failure_of, headline


class ClaimedCell(NamedTuple):
    """A cell that this process has claimed."""

    planned: PlannedCell
    claim: Claim
    curve: Sequence[Cell] = ()
    """Cells on its line over lengths, of which shorter ones may rule it out."""


class CellGroup(NamedTuple):
    """Cells of one kind, which share places."""

    lanes: Mapping[int, Iterator[Sequence[ClaimedCell]]]
    """By the processes of a cell, those that are compared together (`Runner.compares`), any other
    alone. A cell is claimed as it is taken out: when a place is free."""
    places: Places
    sharers: int = 1
    """How many groups like this one may share the machine's memory."""
    crowd: str = ""
    """What may disturb its clocks, which marks its rows; "" for nothing."""


class CellPlan(Protocol):
    """Cells to run, as the executor sees them."""

    def groups(self) -> Generator[CellGroup]:
        """Yield cells that can be run now, group after group: the next, once one is through."""
        ...

    def advance(self, key: str, message: Progress) -> None:
        """Note how far a cell is."""
        ...

    def ended(self, key: str, status: str) -> None:
        """Note how a cell ended: with one of `Status`, STOPPED or SAVED."""
        ...


@dataclass(slots=True)
class Running:
    """A cell while it runs, and what its process has sent."""

    claimed: ClaimedCell
    devices: Taken = ()
    begun: float = 0.0
    """When its process was started, by the monotonic clock."""
    took_s: float | None = 0.0
    """Of its processes that have ended, and its share of those that it had with others; None: it
    went on in the middle."""
    rows: list[Measurement] = field(default_factory=list)
    outcomes: list[Outcomes] = field(default_factory=list)
    probed: Probe | None = None
    """What its comparison with others wants; None: there is none, or not yet."""
    shares: dict[str, float] = field(default_factory=dict)
    """Parts of references in `took_s`, where others were timed with it."""

    @property
    def cell(self) -> Cell:
        """The cell."""
        return self.claimed.planned.cell


class Executor:
    """Runs the cells of a plan; each ends as rows in the store, whatever happens to it."""

    def __init__(
        self,
        plan: CellPlan,
        store: Store,
        board: ProgressBoard,
        logger: SweepLogger,
        until: float = math.inf,
    ) -> None:
        """Take a plan; `until`: by the monotonic clock, nothing is run any more."""
        self.plan, self.store, self.board, self.logger = plan, store, board, logger
        self.until = until
        self.outcome = SweepOutcome()
        self.crowd = ""
        """Of the group that runs."""
        self.running: dict[str, Running] = {}
        """By key, from the claim to the end."""
        self.together: dict[str, list[Running]] = {}
        """Cells by the name of their comparison."""

    def run(self) -> SweepOutcome:
        """Run what the plan gives until there is no more, a signal comes or the storage refuses."""
        with closing(self.plan.groups()) as groups:
            for group in groups:
                self._run(group)
                if self.outcome.stopped_by is not None or self._cause() is not None:
                    break
        return self.outcome

    def _cause(self) -> str | None:
        """Return what ends the work, other than a signal; None for nothing."""
        if self.outcome.refused:
            return "the storage cannot be written"
        if time.monotonic() < self.until:
            return None
        self.outcome.late = True
        return "the time limit of the sweep (runner.sweep_timeout_s)"

    def _run(self, group: CellGroup) -> None:
        """Run cells, those of several processes before those of one."""
        sharers, self.crowd = len(group.places.all) * group.sharers, group.crowd
        try:
            self.outcome.stopped_by = isolate.pool(
                {width: self._jobs(lane, sharers) for width, lane in group.lanes.items()},
                places=group.places,
                on_start=self._on_start,
                on_message=self._on_message,
                on_end=self._on_end,
                stop=self._cause,
            )
            for running in [*self.running.values()]:  # probed, and not compared any more
                stopped = self.outcome.stopped_by
                why = self.outcome.refused or self._cause()
                why = why if stopped is None else f"interrupted by {stopped.name}"
                self._left(running.cell, why)
        finally:
            while self.running:
                self.running.popitem()[1].claimed.claim.release()

    def _jobs(self, lane: Iterator[Sequence[ClaimedCell]], sharers: int) -> Iterator[isolate.Job]:
        while (taken := self._next(lane)) is not None:
            several = [Running(claimed) for claimed in taken]
            self.running.update({running.cell.key: running for running in several})
            for running in several:
                try:
                    end = self._end_untried(running.claimed)
                except OSError as error:
                    self._left(running.cell, self._refuse(error))
                    return
                if end is not None:
                    self._conclude(running, failure_row(running.cell, *end))
            left = [running for running in several if running.cell.key in self.running]
            if len(left) > 1:
                yield from self._compared(left, sharers)
            elif left:
                yield self._job(left[0], sharers)

    def _compared(self, several: Sequence[Running], sharers: int) -> Iterator[isolate.Job]:
        """Probe cells one after the other, then compare them; one that fails ends by itself.

        Where their comparison fails, whatever the reason, each is measured alone.
        """
        for running in several:
            yield self._job(running, sharers, probed=True)
        together = [each for each in several if each.cell.key in self.running]
        if not together:
            return
        job = _comparison(together, self.store, sharers)
        self.together[job.name] = together
        yield job
        del self.together[job.name]
        for running in together:
            if running.cell.key in self.running:
                running.rows, running.probed = [], None
                yield self._job(running, sharers)

    def _job(self, running: Running, sharers: int, *, probed: bool = False) -> isolate.Job:
        """Return the job of a cell, or the part of it that needs no other cell."""
        planned = running.claimed.planned
        logged = self.logger.of_cell(planned.cell, self._resumes)
        return isolate.Job(
            name=planned.cell.key,
            function=run_cell,
            argument={**_argument(planned, self.store), "probed": probed, "logged": logged},
            seconds=planned.run.control.timeout_s,
            processes=processes(planned.run),
            **_limits(planned, self.store, sharers),
        )

    def _next(self, lane: Iterator[Sequence[ClaimedCell]]) -> Sequence[ClaimedCell] | None:
        try:
            return next(lane, None)
        except OSError as error:
            self._refuse(error)
            return None

    def _end_untried(self, claimed: ClaimedCell) -> tuple[Status, str, Mapping[str, str]] | None:
        """Return how a cell ends without being tried, with labels, where that is known."""
        planned = claimed.planned
        end = known_ending(planned, claimed.curve, self.store)
        if end is None and planned.run.runner.trains:
            try:
                check_batch(planned.run, loaded=True)
            except ConfigError as error:
                return Status.unsupported, str(error), {}
        return end

    def _of(self, job: isolate.Job) -> list[Running]:
        """Return the cells of a job."""
        return self.together.get(job.name) or [self.running[job.name]]

    def _on_start(self, job: isolate.Job, taken: Taken) -> None:
        for running in self._of(job):
            running.devices = taken
            if not running.begun:
                self.board.start(running.cell, _details(job), words(taken))
                running.took_s = None if self._resumes(running.cell) else 0.0
            running.begun = time.monotonic()

    def _resumes(self, cell: Cell) -> bool:
        try:
            return Checkpoints(self.store.checkpoint_folder(cell)).present()
        except OSError:  # the cell itself says what is wrong
            return True

    def _on_message(self, job: isolate.Job, message: object) -> None:
        if isinstance(message, tuple) and job.name in self.together:
            key, row = message
            self.running[key].rows.append(row)
            return
        for running in self._of(job):
            if isinstance(message, Progress | Event):
                self.board.advance(running.cell, message)
            elif isinstance(message, Outcomes):
                running.outcomes.append(message)
            elif isinstance(message, Measurement):
                running.rows.append(message)
            elif isinstance(message, Probe):
                running.probed = message
            if isinstance(message, Progress):
                self.plan.advance(running.cell.key, message)

    def _on_end(self, job: isolate.Job, ending: isolate.Ending) -> None:
        cells = self._of(job)
        for running in cells:
            if running.took_s is not None:
                running.took_s += (time.monotonic() - running.begun) / len(cells)
        good = ending.status is Status.ok and not ending.interrupted
        if job.name in self.together:
            if good:
                shares = reference_shares([running.claimed.planned for running in cells])
                for running in cells:
                    running.shares = shares
                    self._conclude(running, None)
            elif ending.storage:
                self._note(StorageFault(ending.reason, ending.may_pass))
            return
        (running,) = cells
        cell, outcome = running.cell, self.outcome
        if good and running.probed is not None:
            self.board.advance(
                cell, Progress(phase="waiting for other runs that are timed together with it")
            )
            return
        if not ending.interrupted:
            labels = NO_DATA if ending.no_data else {}
            ended = None if good else failure_row(cell, ending.status, ending.reason, labels)
            self._conclude(running, ended)
            return
        if ending.storage:
            self._note(StorageFault(ending.reason, ending.may_pass))
        elif outcome.refused is None:
            outcome.stopped[job.name] = ending.reason
        self._left(cell, ending.reason)

    def _conclude(self, running: Running, ended: Measurement | None) -> None:
        """Store a cell; `ended` is the row by which it failed, None where it did not."""
        cell = running.cell
        rows, results = remains(running.rows, running.outcomes, ended)
        try:
            try:
                stays = self._write(running, rows, results)
            except OSError:
                raise
            except (TypeError, ValueError) as error:  # a fault of what yielded them
                rows = [failure_row(cell, Status.crashed, f"its results cannot be stored: {error}")]
                stays = self._write(running, rows, [])
        except OSError as error:
            self._left(running.cell, self._refuse(error))
        else:
            row = failure(rows)
            status = self.outcome.endings[cell.key] = Status.ok if row is None else row.status
            outcome = headline(runner_of(cell), rows)
            outcome += "; the earlier numbers stay" if stays else ""
            self._end(cell, outcome, status)

    def _left(self, cell: Cell, why: str | None) -> None:
        """Leave a cell without rows, and say whether a checkpoint of it goes on."""
        status = SAVED if self._resumes(cell) else STOPPED
        self._end(cell, f"{status}: {why}", status)

    def _end(self, cell: Cell, outcome: str, status: str) -> None:
        """Give the claim back, and say how the cell ended."""
        self.running.pop(cell.key).claimed.claim.release()
        self.board.finish(cell, outcome, status)
        self.plan.ended(cell.key, status)

    def _refuse(self, error: OSError) -> str:
        """Note that the storage refused, which ends the work, and return how.

        Every other error is raised again.
        """
        fault = fault_of(error)
        if fault is None:
            raise error
        self._note(fault)
        return fault.words

    def _note(self, fault: StorageFault) -> None:
        if self.outcome.refused is None:
            self.outcome.refused, self.outcome.may_pass = fault

    def _write(self, running: Running, rows: list[Measurement], outcomes: list[Outcomes]) -> bool:
        """Store a cell, or return True where what is stored is better."""
        if self._worse(running.claimed.planned, rows):
            return True
        took: dict[str, Any] = {}
        if running.took_s:
            took["took_s"] = round(running.took_s, 3)
        if running.shares:
            took["reference_shares"] = running.shares
        about = {**environment(), **place_facts(running.devices), **took}
        marked = _marked(rows, {**self._trust(), **marks(running.claimed.planned.run)})
        self.store.write(running.cell, marked, outcomes, about)
        return False

    def _trust(self) -> dict[str, str]:
        return {DISTURBED: self.crowd} if self.crowd else {}

    def _worse(self, planned: PlannedCell, rows: list[Measurement]) -> bool:
        """Tell whether an attempt failed at a cell that has numbers: it was disturbed before.

        The weights of a training that is done again are gone: its failure is what there is to say.
        """
        if failure(rows) is None or planned.again:
            return False
        before = RowsIndex(self.store.root).summary(planned.cell.key, planned.cell.fingerprint)
        if before is None:
            return False
        return failure_of(before) is None


def prepare_task(task: Task, board: ProgressBoard) -> NotPrepared | BadData | None:
    """Make the data of a task ready before any child needs them; return why they cannot be had."""
    name = task.spec.name
    try:
        with board.preparing(name):
            task.prepare()
        for remark in remarks_of(task).values():
            board.say(f"{name}: warning: {remark}")
    except (NotPrepared, BadData) as error:
        return error
    return None


def _marked(rows: list[Measurement], labels: Mapping[str, str]) -> list[Measurement]:
    """Return the rows with labels that every row of the run carries."""
    return [replace(row, labels={**labels, **row.labels}) for row in rows] if labels else rows


def _comparison(together: Sequence[Running], store: Store, sharers: int) -> isolate.Job:
    """Return the job in which cells are compared: it has the time of all, no part more than one."""
    first, seconds = together[0].claimed.planned, together[0].claimed.planned.run.control.timeout_s
    return isolate.Job(
        name=f"comparison of {first.cell.key}",
        function=compare_cells,
        argument={
            "cells": {each.cell.key: _argument(each.claimed.planned, store) for each in together},
            "probed": {each.cell.key: each.probed for each in together},
        },
        seconds=None if seconds is None else len(together) * seconds,
        silent_s=seconds,
        **_limits(first, store, sharers),
    )


def _limits(planned: PlannedCell, store: Store, sharers: int) -> dict[str, Any]:
    """Return what a process may use, and where it writes its log."""
    return {
        "memory_bytes": _memory_limit(planned.run.hardware, sharers),
        "threads": int(planned.cell.columns["threads"]),
        "log": store.cell_folder(planned.cell.key) / "log.txt",
    }


def _argument(planned: PlannedCell, store: Store) -> dict[str, Any]:
    """Return what the process of a cell has to know of it."""
    cell, stored = planned.cell, stored_training(planned.run)
    return {
        "config": cell.config,
        "plugins": named_plugins(),
        "runner": cell.columns["runner"],
        "mode": cell.columns["mode"],
        "length": cell.columns["length"],
        "trainings": {
            name: str(store.checkpoint_folder(source)) for name, source in planned.trainings.items()
        },
        "stored": None if stored is None else asdict(stored),
        "checkpoints": str(store.checkpoint_folder(cell)) if planned.run.runner.trains else None,
    }


def _details(job: isolate.Job) -> list[str]:
    """Return the details of a cell that `--verbose` prints."""
    limit = "" if job.memory_bytes is None else f", {job.memory_bytes / 2**30:.1f} GiB at most"
    lines = [f"key {job.name}, {job.threads} threads{limit}", f"log {job.log}"]
    if job.argument.get("checkpoints"):
        lines.append(f"checkpoints {job.argument['checkpoints']}")
    return lines


def _memory_limit(hardware: HardwareProfile, sharers: int) -> int | None:
    """Return the bytes that a process may use on a CPU; a GPU's limit is set in the cell.

    Without a limit of the profile, a share of what is available: a cell that wants more fails by
    itself, before the system looks for a victim.
    """
    if hardware.device is not Device.cpu:
        return None
    if hardware.memory_limit_bytes is not None:
        return hardware.memory_limit_bytes
    available = available_bytes()
    return None if available is None else int(0.9 * available / sharers)
