"""The executor of cells: runs each cell of a plan in a separate process, and stores its rows.

The plan of `lra run` is in memory. That of `lra work` is stored, and other workers share it.
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
    """The cells of the same model at shorter lengths. If one of them ran out of memory or time,
    this one is skipped."""


class CellGroup(NamedTuple):
    """Cells that run side by side on the same places, such as the GPUs of a machine."""

    lanes: Mapping[int, Iterator[Sequence[ClaimedCell]]]
    """By number of processes of a cell: an iterator over the next cells to run. It yields cells
    that are compared with one another (`Runner.compares`) together, any other cell alone, and it
    claims a cell only when it yields it, that is when a place is free."""
    places: Places
    sharers: int = 1
    """How many groups like this one may share the machine's memory."""
    crowd: str = ""
    """What may disturb its timings, as its rows will say; "" for nothing."""


class CellPlan(Protocol):
    """Cells to run, as the executor sees them."""

    def groups(self) -> Generator[CellGroup]:
        """Yield the groups of cells that can run now; the next when all cells of one have ended."""
        ...

    def advance(self, key: str, message: Progress) -> None:
        """Take note of a cell's progress, a report of its process."""
        ...

    def ended(self, key: str, status: str) -> None:
        """Take note of how a cell ended: one of `Status`, STOPPED or SAVED."""
        ...


@dataclass(slots=True)
class Running:
    """A cell while it runs, and what its process has sent."""

    claimed: ClaimedCell
    devices: Taken = ()
    begun: float = 0.0
    """When its present process was started, by the monotonic clock; 0: not yet."""
    took_s: float | None = 0.0
    """Seconds that its ended processes took, with its share of those that it had together with
    other cells; None: it was resumed from a checkpoint, so that its whole time is not known."""
    rows: list[Measurement] = field(default_factory=list)
    outcomes: list[Outcomes] = field(default_factory=list)
    probed: Probe | None = None
    """What its probe found, which its comparison with other cells needs; None: not probed."""
    shares: dict[str, float] = field(default_factory=dict)
    """By reference: which part of its timing is in `took_s`, where cells were timed together."""

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
        """Take the plan to run; at the time `until` of the monotonic clock all work is stopped."""
        self.plan, self.store, self.board, self.logger = plan, store, board, logger
        self.until = until
        self.outcome = SweepOutcome()
        self.crowd = ""
        """What may disturb the timings of the group that runs now: see `CellGroup.crowd`."""
        self.running: dict[str, Running] = {}
        """The claimed cells that have not ended, by key."""
        self.together: dict[str, list[Running]] = {}
        """The cells of each comparison that runs now, by the name of its job."""

    def run(self) -> SweepOutcome:
        """Run all groups of the plan; a signal, a storage fault or the time limit ends it."""
        with closing(self.plan.groups()) as groups:
            for group in groups:
                self._run(group)
                if self.outcome.stopped_by is not None or self._find_cause() is not None:
                    break
        return self.outcome

    def _find_cause(self) -> str | None:
        """Return why all work must stop, apart from signals; None: it need not stop."""
        if self.outcome.refused:
            return "the results folder cannot be written"
        if time.monotonic() < self.until:
            return None
        self.outcome.late = True
        return "the time limit of the sweep is over (runner.sweep_timeout_s)"

    def _run(self, group: CellGroup) -> None:
        """Run the cells of a group until all have ended, those of several processes first."""
        sharers, self.crowd = len(group.places.all) * group.sharers, group.crowd
        try:
            self.outcome.stopped_by = isolate.pool(
                {width: self._jobs(lane, sharers) for width, lane in group.lanes.items()},
                places=group.places,
                on_start=self._on_start,
                on_message=self._on_message,
                on_end=self._on_end,
                stop=self._find_cause,
            )
            for running in [*self.running.values()]:  # they were probed, but not compared
                stopped = self.outcome.stopped_by
                why = self.outcome.refused or self._find_cause()
                why = why if stopped is None else f"interrupted by {stopped.name}"
                self._leave(running.cell, why)
        finally:
            while self.running:
                _, running = self.running.popitem()
                running.claimed.claim.release()

    def _jobs(self, lane: Iterator[Sequence[ClaimedCell]], sharers: int) -> Iterator[isolate.Job]:
        """Yield the jobs of the cells of a lane; those whose end is known already need no job."""
        while (claimed_cells := self._take_next(lane)) is not None:
            group = [Running(claimed) for claimed in claimed_cells]
            self.running.update({running.cell.key: running for running in group})
            for running in group:
                try:
                    end = self._end_untried(running.claimed)
                except OSError as error:
                    self._leave(running.cell, self._refuse(error))
                    return
                if end is not None:
                    self._conclude(running, failure_row(running.cell, *end))
            to_run = [running for running in group if running.cell.key in self.running]
            if len(to_run) > 1:
                yield from self._comparison_jobs(to_run, sharers)
            elif to_run:
                yield self._make_job(to_run[0], sharers)

    def _comparison_jobs(self, several: Sequence[Running], sharers: int) -> Iterator[isolate.Job]:
        """Yield the jobs that probe cells one by one, then the job that measures them together.

        A cell whose probe fails ends with that failure, and the others go on. Where measuring them
        together fails, whatever the reason, each is then measured alone.
        """
        for running in several:
            yield self._make_job(running, sharers, probed=True)
        # A cell whose probe failed has ended, and is not in `running` any more.
        together = [running for running in several if running.cell.key in self.running]
        if not together:
            return
        job = _comparison(together, self.store, sharers)
        self.together[job.name] = together
        yield job
        del self.together[job.name]  # the pool asks for more when this job has ended
        for running in together:
            if running.cell.key in self.running:
                running.rows, running.probed = [], None
                yield self._make_job(running, sharers)

    def _make_job(self, running: Running, sharers: int, *, probed: bool = False) -> isolate.Job:
        """Return the job of a cell; with `probed`, the job of its probe alone."""
        planned = running.claimed.planned
        logged = self.logger.of_cell(planned.cell, self._resumes)
        return isolate.Job(
            name=planned.cell.key,
            function=run_cell,
            argument={**_describe(planned, self.store), "probed": probed, "logged": logged},
            seconds=planned.run.control.timeout_s,
            processes=processes(planned.run),
            **_find_limits(planned, self.store, sharers),
        )

    def _take_next(self, lane: Iterator[Sequence[ClaimedCell]]) -> Sequence[ClaimedCell] | None:
        """Claim and return the next cells; None where there are no more, or the storage refuses."""
        try:
            return next(lane, None)
        except OSError as error:
            self._refuse(error)
            return None

    def _end_untried(self, claimed: ClaimedCell) -> tuple[Status, str, Mapping[str, str]] | None:
        """Return status, reason and labels of a cell that need not be tried; None for any other."""
        planned = claimed.planned
        end = known_ending(planned, claimed.curve, self.store)
        if end is None and planned.run.runner.trains:
            try:
                check_batch(planned.run, loaded=True)
            except ConfigError as error:
                return Status.unsupported, str(error), {}
        return end

    def _cells_of(self, job: isolate.Job) -> list[Running]:
        """Return the cells that a job runs: one, or all of a comparison."""
        return self.together.get(job.name) or [self.running[job.name]]

    def _on_start(self, job: isolate.Job, taken: Taken) -> None:
        """Record that the process of a job was started on the places `taken`."""
        for running in self._cells_of(job):
            running.devices = taken
            if not running.begun:  # the first of its jobs
                self.board.start(running.cell, _list_details(job), words(taken))
                running.took_s = None if self._resumes(running.cell) else 0.0
            running.begun = time.monotonic()

    def _resumes(self, cell: Cell) -> bool:
        """Return whether a cell has a checkpoint from which it will continue."""
        try:
            return Checkpoints(self.store.checkpoint_folder(cell)).present()
        except OSError:  # the cell itself says what is wrong
            return True

    def _on_message(self, job: isolate.Job, message: object) -> None:
        """Store a message of a job's process; a job of several cells sends pairs of key and row."""
        if isinstance(message, tuple) and job.name in self.together:
            key, row = message
            self.running[key].rows.append(row)
            return
        for running in self._cells_of(job):
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
        """End the cells of a job that has ended; a cell that was only probed waits for others."""
        cells = self._cells_of(job)
        for running in cells:
            if running.took_s is not None:
                running.took_s += (time.monotonic() - running.begun) / len(cells)
        succeeded = ending.status is Status.ok and not ending.interrupted
        if job.name in self.together:
            if succeeded:
                shares = reference_shares([running.claimed.planned for running in cells])
                for running in cells:
                    running.shares = shares
                    self._conclude(running, None)
            elif ending.storage:
                self._note_fault(StorageFault(ending.reason, ending.may_pass))
            return
        (running,) = cells
        cell, outcome = running.cell, self.outcome
        if succeeded and running.probed is not None:
            waiting = Progress(phase="waiting for the runs with which it is compared")
            self.board.advance(cell, waiting)
            return
        if not ending.interrupted:
            labels = NO_DATA if ending.no_data else {}
            ended = None if succeeded else failure_row(cell, ending.status, ending.reason, labels)
            self._conclude(running, ended)
            return
        if ending.storage:
            self._note_fault(StorageFault(ending.reason, ending.may_pass))
        elif outcome.refused is None:
            outcome.stopped[job.name] = ending.reason
        self._leave(cell, ending.reason)

    def _conclude(self, running: Running, ended: Measurement | None) -> None:
        """Store the rows of a cell and end it.

        Args:
            running: The cell.
            ended: The row that gives the reason of its failure; None: it has not failed.
        """
        cell = running.cell
        rows, results = remains(running.rows, running.outcomes, ended)
        try:
            try:
                stays = self._write(running, rows, results)
            except OSError:
                raise
            except (TypeError, ValueError) as error:  # a runner has yielded what JSON cannot hold
                reason = f"the results of this run cannot be stored: {error}"
                rows = [failure_row(cell, Status.crashed, reason)]
                stays = self._write(running, rows, [])
        except OSError as error:
            self._leave(running.cell, self._refuse(error))
        else:
            row = failure(rows)
            status = self.outcome.endings[cell.key] = Status.ok if row is None else row.status
            outcome = headline(runner_of(cell), rows)
            outcome += "; the earlier results of this run stay" if stays else ""
            self._end(cell, outcome, status)

    def _leave(self, cell: Cell, why: str | None) -> None:
        """End a cell without rows; its status says whether a checkpoint of it can be resumed."""
        status = SAVED if self._resumes(cell) else STOPPED
        self._end(cell, f"{status}: {why}", status)

    def _end(self, cell: Cell, outcome: str, status: str) -> None:
        """Release the claim of a cell, and report to board and plan how it ended."""
        self.running.pop(cell.key).claimed.claim.release()
        self.board.finish(cell, outcome, status)
        self.plan.ended(cell.key, status)

    def _refuse(self, error: OSError) -> str:
        """Record that the storage refuses to write, which stops all work; return the message.

        An error that is no fault of the storage is raised again.
        """
        fault = fault_of(error)
        if fault is None:
            raise error
        self._note_fault(fault)
        return fault.words

    def _note_fault(self, fault: StorageFault) -> None:
        """Store a fault of the storage in the outcome, unless an earlier one is there."""
        if self.outcome.refused is None:
            self.outcome.refused, self.outcome.may_pass = fault

    def _write(self, running: Running, rows: list[Measurement], outcomes: list[Outcomes]) -> bool:
        """Store the rows of a cell and return False; or return True if better rows stay stored."""
        if self._is_worse_than_stored(running.claimed.planned, rows):
            return True
        took: dict[str, Any] = {}
        if running.took_s:
            took["took_s"] = round(running.took_s, 3)
        if running.shares:
            took["reference_shares"] = running.shares
        about = {**environment(), **place_facts(running.devices), **took}
        disturbed = {DISTURBED: self.crowd} if self.crowd else {}
        labelled = _with_labels(rows, {**disturbed, **marks(running.claimed.planned.run)})
        self.store.write(running.cell, labelled, outcomes, about)
        return False

    def _is_worse_than_stored(self, planned: PlannedCell, rows: list[Measurement]) -> bool:
        """Return whether these rows are those of a failure, and the stored ones are not.

        That happens when a cell that was disturbed is repeated. A training that is repeated because
        its weights are gone (`again`) is different: its failure is stored.
        """
        if failure(rows) is None or planned.again:
            return False
        before = RowsIndex(self.store.root).summary(planned.cell.key, planned.cell.fingerprint)
        if before is None:
            return False
        return failure_of(before) is None


def prepare_task(task: Task, board: ProgressBoard) -> NotPrepared | BadData | None:
    """Prepare the data of a task before any cell needs them; return the error if that fails."""
    name = task.spec.name
    try:
        with board.preparing(name):
            task.prepare()
        for remark in remarks_of(task).values():
            board.say(f"{name}: warning: {remark}")
    except (NotPrepared, BadData) as error:
        return error
    return None


def _with_labels(rows: list[Measurement], labels: Mapping[str, str]) -> list[Measurement]:
    """Return the rows with these labels added; a label that a row has itself stays."""
    return [replace(row, labels={**labels, **row.labels}) for row in rows] if labels else rows


def _comparison(together: Sequence[Running], store: Store, sharers: int) -> isolate.Job:
    """Return the job that measures cells together.

    Its time limit is the sum of those of the cells, and it must not be silent for longer than one.
    """
    first, seconds = together[0].claimed.planned, together[0].claimed.planned.run.control.timeout_s
    return isolate.Job(
        name=f"comparison of {first.cell.key}",
        function=compare_cells,
        argument={
            "cells": {run.cell.key: _describe(run.claimed.planned, store) for run in together},
            "probed": {run.cell.key: run.probed for run in together},
        },
        seconds=None if seconds is None else len(together) * seconds,
        silent_s=seconds,
        **_find_limits(first, store, sharers),
    )


def _find_limits(planned: PlannedCell, store: Store, sharers: int) -> dict[str, Any]:
    """Return memory limit, threads and log file of a cell's process, as arguments of a Job."""
    return {
        "memory_bytes": _limit_memory(planned.run.hardware, sharers),
        "threads": int(planned.cell.columns["threads"]),
        "log": store.cell_folder(planned.cell.key) / "log.txt",
    }


def _describe(planned: PlannedCell, store: Store) -> dict[str, Any]:
    """Return what the process of a cell has to know of it, as plain JSON: see `CellWork`."""
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


def _list_details(job: isolate.Job) -> list[str]:
    """Return the details of a cell that `--verbose` prints."""
    limit = "" if job.memory_bytes is None else f", ≤ {job.memory_bytes / 2**30:.1f} GiB"
    lines = [f"key {job.name}, {job.threads} threads{limit}", f"log {job.log}"]
    if job.argument.get("checkpoints"):
        lines.append(f"checkpoints {job.argument['checkpoints']}")
    return lines


def _limit_memory(hardware: HardwareProfile, sharers: int) -> int | None:
    """Return the bytes that a process may use on a CPU; None: no limit, or it runs on a GPU.

    Without a limit in the hardware profile, this is an equal share of 90 % of the free memory. A
    cell that wants more then fails alone, before the system kills any process that it chooses.
    """
    if hardware.device is not Device.cpu:
        return None
    if hardware.memory_limit_bytes is not None:
        return hardware.memory_limit_bytes
    available = available_bytes()
    return None if available is None else int(0.9 * available / sharers)
