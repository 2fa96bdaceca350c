"""Gives the cells of a stored plan to the executor of one worker."""

import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TextIO

from lra.cluster.claiming import Claiming
from lra.cluster.machine import machine
from lra.cluster.plan import PlanEntry
from lra.cluster.state import WorkerState
from lra.execution.executor import CellGroup, ClaimedCell, prepare_task
from lra.runners.isolation.places import Places
from lra.runners.isolation.progress import Progress
from lra.runners.measurement.hardware import available_bytes
from lra.runners.measurement.training_places import shared_places
from lra.sweep.cells import Lookups
from lra.sweep.places import kind_of, processes
from lra.sweep.sweep_logger import SweepLogger
from lra.terminal.board import UNENDED, ProgressBoard

LEAST_BYTES = 2**30
"""A cell may use at least this memory, however many workers share it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """The options of a worker."""

    name: str
    group: str | None = None
    """The group of workers in the plan that sets its resources; None: it takes every cell."""
    side_by_side: int | None = None
    """How many training cells it runs at once; None: as the hardware profile says."""
    number: int = 0
    """Its number among its peers, from 0, which decides the GPUs that it uses."""
    peers: int = 1
    """Workers that share this machine's memory."""
    wait_s: float | None = None
    """Seconds for which it waits for runs of other workers; None: as the plan says."""
    echo: TextIO | None = None
    """A second stream for the lines of the log; None: there is none."""


@dataclass(slots=True)
class SharedPlan:
    """Claims cells one by one, when places become free, because other workers take cells, too."""

    claiming: Claiming
    options: WorkerOptions
    board: ProgressBoard
    state: WorkerState
    logger: SweepLogger
    data: dict[str, str]
    """By name of data that were prepared: why that failed; "": it did not."""
    changed: Callable[[], bool]
    """Returns whether the file of the plan has changed."""
    count: int = 0
    """How many cells have been started."""
    unlocked: bool = False
    """Whether the log says already that other workers cannot be kept away from this machine."""

    def groups(self) -> Generator[CellGroup]:
        """Yield groups of similar cells until no cell can be taken or the plan has changed."""
        before = -1  # the count when the round began; a round that starts no cell is the last
        while self.count > before and not self.changed():
            before = self.count
            self.claiming.look()
            yield from self._next_group()

    def _next_group(self) -> Generator[CellGroup]:
        """Yield one group: the first cell that can be claimed, and cells like it. Prepares data."""
        while (place := next(self.claiming.possible(), None)) is not None:
            with ExitStack() as on_exit:
                timed = self.claiming.plan.entries[place].timed
                fault = on_exit.enter_context(machine(alone=timed, waiting=self._wait_for_machine))
                crowd = self._report_crowd(fault) if timed else ""
                first = self.claiming.take(place)
                if first is None:
                    continue
                on_exit.callback(first.claim.release)
                if (why := self._why_not_here(first)) is not None:
                    self.claiming.set_aside[self._find_place(first.planned.cell.key)] = why
                    continue
                self._prepare(first)
                if remark := self.logger.check():
                    self.board.say(remark, always=True)
                available = available_bytes()
                # Of memory too small for all workers, so many can have a part of LEAST_BYTES.
                limit = sys.maxsize if available is None else max(1, available // LEAST_BYTES)
                yield CellGroup(
                    lanes={processes(first.planned.run): self._similar_cells(first)},
                    places=self._find_places(first),
                    sharers=1 if timed else min(self.options.peers, limit),
                    crowd=crowd,
                )
                return

    def _find_place(self, key: str) -> int:
        """Return the number of a cell in the plan, from 0."""
        return self.claiming.plan.places[key]

    def _find_entry(self, taken: ClaimedCell) -> PlanEntry:
        return self.claiming.plan.entries[self._find_place(taken.planned.cell.key)]

    def _report_crowd(self, fault: str) -> str:
        """Return what may disturb a timed cell, and log it once; "" if nothing may."""
        if fault and not self.unlocked:
            self.board.say(
                f"lra cannot prevent other workers from running on this machine ({fault}), so "
                "timings are marked as disturbed. Repeat them with one worker and "
                "runner.retry=[disturbed]",
                always=True,
            )
            self.unlocked = True
        return "other workers could have run on this machine" if fault else ""

    def _wait_for_machine(self) -> None:
        """Say that a timed cell waits until no other worker uses this machine."""
        why = "waiting until no other worker uses this machine, because the next run measures time"
        self.board.say(why, always=True)
        self.state.say("waiting for the machine")

    def _find_places(self, taken: ClaimedCell) -> Places:
        """Return the devices or cores for cells like this one, which peers do not use."""
        run, options = taken.planned.run, self.options
        return shared_places(
            run.hardware,
            timed=run.runner.timed,
            processes=processes(run),
            cells=options.side_by_side,
            share=(options.number, options.peers),
        )

    def _why_not_here(self, taken: ClaimedCell) -> str | None:
        """Return why a cell cannot run here, such as too few devices; None: it can."""
        cell, hardware = taken.planned.cell, taken.planned.run.hardware
        try:
            self._find_places(taken)
            if not self._find_entry(taken).timed:
                return None
            device = Lookups().device_of(hardware)
        except ValueError as error:
            return str(error)
        planned_device, threads = cell.columns["device"], cell.columns["threads"]
        if device != planned_device:
            return f"a timed run needs the planned {planned_device}, but this machine has {device}"
        if hardware.timing_threads() != threads:
            return (
                f"a timed run needs {threads} threads, but here it has {hardware.timing_threads()}"
            )
        return None

    def _prepare(self, taken: ClaimedCell) -> None:
        """Prepare the data of a cell, once, and remember in `data` whether that failed."""
        name = self._find_entry(taken).data
        if name not in self.data:
            task = taken.planned.run.task
            self.state.say(f"preparing {task.spec.name}")
            fault = prepare_task(task, self.board)
            self.data[name] = "" if fault is None else str(fault)

    def _similar_cells(self, first: ClaimedCell) -> Iterator[Sequence[ClaimedCell]]:
        """Yield the first cell, then claim and yield others with the same runner and resources."""
        # The device may have another name than on the machine that planned the cells.
        device = Lookups().device_of(first.planned.run.hardware)
        entry, kind = self._find_entry(first), _kind_key(first)
        yield [self._note_start(first, device)]
        for place in self.claiming.possible(entry.runner):
            other = self.claiming.plan.entries[place]
            if (other.needs.gpus, other.needs.cpus) != (entry.needs.gpus, entry.needs.cpus):
                continue
            if self.changed():
                return
            if other.data not in self.data:
                continue  # data are prepared only while no cell runs
            taken = self.claiming.take(place)
            if taken is None:
                continue
            if _kind_key(taken) == kind:
                yield [self._note_start(taken, device)]
            else:
                taken.claim.release()  # it needs other places, though as many cores

    def _note_start(self, taken: ClaimedCell, device: str) -> ClaimedCell:
        """Record that a claimed cell is about to start; return it with its data and device set."""
        planned = taken.planned
        planned.no_data = self.data[self._find_entry(taken).data] or None
        planned.cell = replace(planned.cell, columns={**planned.cell.columns, "device": device})
        key = planned.cell.key
        self.board.numbers[key] = str(self._find_place(key) + 1)
        self.state.begin(key, self.board.titles[key])
        self.count += 1
        return taken

    def advance(self, key: str, message: Progress) -> None:
        """Record the progress of a cell."""
        self.state.advance(key, message)

    def ended(self, key: str, status: str) -> None:
        """Record how a cell ended, and that this worker does not take it again."""
        self.state.end(key, status)
        if status in UNENDED:
            self.claiming.set_aside[self._find_place(key)] = "a signal stopped the run here"
        else:
            self.claiming.over.add(self._find_place(key))


def _kind_key(taken: ClaimedCell) -> tuple[object, ...]:
    """Return a key that is equal for cells that can run in one group."""
    return (*kind_of(taken.planned), processes(taken.planned.run))
