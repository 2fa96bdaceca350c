"""The cells of a stored plan, as the executor of one worker takes them."""

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
"""What a cell may use however many workers share the memory: its limit counts what it maps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """The options of a worker."""

    name: str
    group: str | None = None
    """Of the plan's workers, whose resources it has; None: it takes every cell."""
    side_by_side: int | None = None
    """Training cells at once; None: as the hardware profile says."""
    number: int = 0
    """Among its peers, from 0: which of the machine's GPUs are its own."""
    peers: int = 1
    """Workers that share this machine's memory."""
    wait_s: float | None = None
    """None: as the plan says."""
    echo: TextIO | None = None
    """Where else goes what the log says."""


@dataclass(slots=True)
class SharedPlan:
    """Cells that are claimed one by one as places become free, for other workers take them too."""

    claiming: Claiming
    options: WorkerOptions
    board: ProgressBoard
    state: WorkerState
    logger: SweepLogger
    data: dict[str, str]
    """By names of data that were tried, why they cannot be had; "": they can."""
    changed: Callable[[], bool]
    """Whether the plan is another one by now."""
    count: int = 0
    """Cells that were begun."""
    unlocked: bool = False
    """Whether it was said that this machine cannot be had alone."""

    def groups(self) -> Generator[CellGroup]:
        """Yield cells like the first that can be taken, again and again; none of a changed plan."""
        before = -1
        while self.count > before and not self.changed():
            before = self.count
            self.claiming.look()
            yield from self._next_group()

    def _next_group(self) -> Generator[CellGroup]:
        while (place := next(self.claiming.possible(), None)) is not None:
            with ExitStack() as held:
                timed = self.claiming.plan.entries[place].timed
                fault = held.enter_context(machine(alone=timed, waiting=self._wait_for_machine))
                crowd = self._crowd(fault) if timed else ""
                first = self.claiming.take(place)
                if first is None:
                    continue
                held.callback(first.claim.release)
                if (why := self._not_here(first)) is not None:
                    self.claiming.set_aside[self._place(first.planned.cell.key)] = why
                    continue
                self._prepare(first)
                if word := self.logger.check():
                    self.board.say(word, always=True)
                available = available_bytes()
                most = sys.maxsize if available is None else max(1, available // LEAST_BYTES)
                yield CellGroup(
                    lanes={processes(first.planned.run): self._alike(first)},
                    places=self._places(first),
                    sharers=1 if timed else min(self.options.peers, most),
                    crowd=crowd,
                )
                return

    def _place(self, key: str) -> int:
        return self.claiming.plan.places[key]

    def _entry(self, taken: ClaimedCell) -> PlanEntry:
        return self.claiming.plan.entries[self._place(taken.planned.cell.key)]

    def _crowd(self, fault: str) -> str:
        """Return what may disturb a cell that reads the clock, and say it once; "" for nothing."""
        if fault and not self.unlocked:
            self.board.say(
                f"lra cannot prevent other workers from running on this machine ({fault}). Timings "
                "are marked as disturbed; run one worker here with runner.retry=[disturbed]",
                always=True,
            )
            self.unlocked = True
        return "other workers could have run on this machine" if fault else ""

    def _wait_for_machine(self) -> None:
        word = "waiting until no other worker uses this machine, because the next run measures time"
        self.board.say(word, always=True)
        self.state.say("waiting for the machine")

    def _places(self, taken: ClaimedCell) -> Places:
        run, options = taken.planned.run, self.options
        return shared_places(
            run.hardware,
            timed=run.runner.timed,
            processes=processes(run),
            cells=options.side_by_side,
            share=(options.number, options.peers),
        )

    def _not_here(self, taken: ClaimedCell) -> str | None:
        """Return why a cell does not run here: too few devices, or others than its key says."""
        cell, hardware = taken.planned.cell, taken.planned.run.hardware
        try:
            self._places(taken)
            if not self._entry(taken).timed:
                return None
            here = Lookups().device_of(hardware)
        except ValueError as error:
            return str(error)
        there, threads = cell.columns["device"], cell.columns["threads"]
        if here != there:
            return f"is measured on {there}, and this is {here}"
        if hardware.timing_threads() != threads:
            return f"is measured with {threads} threads, and here are {hardware.timing_threads()}"
        return None

    def _prepare(self, taken: ClaimedCell) -> None:
        """Make the data of a cell ready, once; where they cannot be had is noted."""
        name = self._entry(taken).data
        if name not in self.data:
            task = taken.planned.run.task
            self.state.say(f"preparing {task.spec.name}")
            fault = prepare_task(task, self.board)
            self.data[name] = "" if fault is None else str(fault)

    def _alike(self, first: ClaimedCell) -> Iterator[Sequence[ClaimedCell]]:
        """Yield cells whose claims are held, of the runner and the size of the first."""
        # Its name need not be that of what planned the cells.
        device = Lookups().device_of(first.planned.run.hardware)
        entry, kind = self._entry(first), _kind(first)
        yield [self._begun(first, device)]
        for place in self.claiming.possible(entry.runner):
            other = self.claiming.plan.entries[place]
            if (other.needs.gpus, other.needs.cpus) != (entry.needs.gpus, entry.needs.cpus):
                continue
            if self.changed():
                return
            if other.data not in self.data:
                continue  # data are prepared while nothing runs
            taken = self.claiming.take(place)
            if taken is None:
                continue
            if _kind(taken) == kind:
                yield [self._begun(taken, device)]
            else:
                taken.claim.release()  # as many cores, and otherwise shared out

    def _begun(self, taken: ClaimedCell, device: str) -> ClaimedCell:
        """Note a cell that is about to begin."""
        planned = taken.planned
        planned.no_data = self.data[self._entry(taken).data] or None
        planned.cell = replace(planned.cell, columns={**planned.cell.columns, "device": device})
        key = planned.cell.key
        self.board.numbers[key] = str(self._place(key) + 1)
        self.state.begin(key, self.board.titles[key])
        self.count += 1
        return taken

    def advance(self, key: str, message: Progress) -> None:
        """Note how far a cell is."""
        self.state.advance(key, message)

    def ended(self, key: str, status: str) -> None:
        """Note how a cell ended, and that it is not to be taken again."""
        self.state.end(key, status)
        if status in UNENDED:
            self.claiming.set_aside[self._place(key)] = "was stopped here by a signal"
        else:
            self.claiming.over.add(self._place(key))


def _kind(taken: ClaimedCell) -> tuple[object, ...]:
    return (*kind_of(taken.planned), processes(taken.planned.run))
