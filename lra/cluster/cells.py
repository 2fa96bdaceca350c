"""The cells of one kind that a worker takes from a plan, while they run."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from lra.cluster.claiming import ClaimedCell, Claiming
from lra.cluster.state import WorkerState
from lra.errors import ConfigError
from lra.execution.group import CellGroup, refuse
from lra.sweep.batch_check import check_batch
from lra.sweep.cell_list import Sweep
from lra.sweep.live import LiveSweep
from lra.sweep.places import kind_of, processes
from lra.sweep.planned import Planned, ending
from lra.terminal.board import STOPPED, ProgressBoard
from runners.isolation import isolate
from runners.isolation.places import Places
from runners.isolation.progress import Progress
from runners.records import Cell, Status


class PlanCells(CellGroup):
    """Cells that are claimed one by one as places become free.

    Args:
        sweep: whom they belong to.
        claiming: what can be taken.
        board: where progress is printed.
        state: what is noted for those who watch.
        first: one that is claimed already; the others are of its kind.
        live: what a dashboard gets.
        ready: whether the data of that name can be had, or why not; None: not tried yet.
        device: name of what the cells run on, which need not be what planned them.
        sharers: how many cells may have to share the machine's memory.
        changed: whether the plan is another one by now.
    """

    def __init__(
        self,
        sweep: Sweep,
        claiming: Claiming,
        board: ProgressBoard,
        state: WorkerState,
        first: ClaimedCell,
        *,
        live: LiveSweep,
        ready: Callable[[str], str | None],
        device: str,
        sharers: int,
        changed: Callable[[], bool],
    ) -> None:
        super().__init__(sweep, claiming.store, board, live, [])
        self.claiming, self.state, self.first = claiming, state, first
        self.ready, self.sharers, self.changed = ready, sharers, changed
        self.device = device
        self.taken: dict[str, ClaimedCell] = {}
        self.count = 0

    def run(self, places: Places) -> None:
        """Run cells until there are no more to take on these places."""
        self.claims[self.first.planned.cell.key] = self.first.claim
        super().run(places)

    def _jobs(self, lane: Iterator[Planned], places: int) -> Iterator[isolate.Job]:
        yield from super()._jobs(lane, places * self.sharers)

    def _lanes(self) -> Mapping[int, Iterator[Planned]]:
        return {processes(self.first.planned.run): self._alike()}

    def _alike(self) -> Iterator[Planned]:
        """Yield cells whose claims are held, of the runner and the size of the first."""
        yield self._begun(self.first)
        entries = self.claiming.plan.entries
        first, kind = entries[self.first.place], kind_of(self.first.planned)
        for place in self.claiming.possible(first.runner):
            needs = entries[place].needs
            if (needs.gpus, needs.cpus) != (first.needs.gpus, first.needs.cpus):
                continue
            if self.changed():
                return
            if self.ready(entries[place].data) is None:
                continue  # data are prepared while nothing runs
            try:
                taken = self.claiming.take(place)
            except OSError as error:
                refuse(self.sweep, error)
                return
            if taken is None:
                continue
            if kind_of(taken.planned) != kind or processes(taken.planned.run) != processes(
                self.first.planned.run
            ):
                taken.claim.release()  # as many cores, and otherwise shared out
            else:
                self.claims[taken.planned.cell.key] = taken.claim
                yield self._begun(taken)

    def _begun(self, taken: ClaimedCell) -> Planned:
        """Note a cell that is about to begin."""
        planned, place = taken.planned, taken.place
        columns = {**planned.cell.columns, "device": self.device}
        cell = planned.cell = replace(planned.cell, columns=columns)
        self.taken[cell.key] = taken
        planned.no_data = self.ready(self.claiming.plan.entries[place].data) or None
        self.board.numbers[cell.key] = str(place + 1)
        self.state.begin(cell.key, self.sweep.titles[cell.key])
        self.count += 1
        return planned

    def _known_end(self, planned: Planned) -> tuple[Status, str] | None:
        end = ending(planned, self.taken[planned.cell.key].shorter, self.store)
        if end is None and planned.run.runner.trains:
            try:
                check_batch(planned.run, loaded=True)
            except ConfigError as error:
                return Status.unsupported, str(error)
        return end

    def _on_message(self, job: isolate.Job, message: object) -> None:
        super()._on_message(job, message)
        if isinstance(message, Progress):
            self.state.advance(job.name, message)

    def _ended(self, cell: Cell, outcome: str, status: str) -> None:
        super()._ended(cell, outcome, status)
        self.state.end(cell.key, status)
        place = self.taken.pop(cell.key).place
        del self.by_key[cell.key]
        if status == STOPPED:
            self.claiming.set_aside[place] = "was stopped here from outside"
        else:
            self.claiming.over.add(place)
