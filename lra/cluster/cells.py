"""The cells of one kind that a worker takes from a plan, while they run."""

from collections.abc import Callable, Iterator

from lra.cluster.claiming import ClaimedCell, Claiming
from lra.cluster.state import WorkerState
from lra.compose import ConfigError
from lra.sweep.batch_check import check_batch
from lra.sweep.board import STOPPED, ProgressBoard
from lra.sweep.cell_list import Sweep
from lra.sweep.group import CellGroup, refuse
from lra.sweep.live import LiveSweep
from lra.sweep.planned import Planned, ending
from runners.isolation import isolate
from runners.isolation.progress import Progress
from runners.records import Cell, Status


class PlanCells(CellGroup):
    """Cells that are claimed one by one as places become free.

    Args:
        sweep: whom they belong to.
        claiming: what can be taken.
        board: what is said.
        state: what is noted for those who watch.
        first: one that is claimed already; the others are of its kind.
        ready: whether the data of that name can be had, or why not; None: not tried yet.
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
        ready: Callable[[str], str | None],
        sharers: int,
        changed: Callable[[], bool],
    ) -> None:
        super().__init__(sweep, claiming.store, board, LiveSweep(sweep, []), [])
        self.claiming, self.state, self.first = claiming, state, first
        self.ready, self.sharers, self.changed = ready, sharers, changed
        self.places: dict[str, int] = {}
        self.count = 0

    def run(self, side_by_side: int) -> None:
        """Run cells until there are no more to take, at most `side_by_side` at once."""
        self.claims[self.first.planned.cell.key] = self.first.claim
        super().run(side_by_side)

    def _jobs(self, side_by_side: int) -> Iterator[isolate.Job]:
        yield from super()._jobs(side_by_side * self.sharers)

    def _taken(self) -> Iterator[Planned]:
        yield self._begun(self.first)
        entries = self.claiming.plan.entries
        runner = entries[self.first.place].runner
        for place in self.claiming.possible(runner):
            if self.changed():
                return
            if self.ready(entries[place].data) is None:
                continue  # data are made while nothing runs
            try:
                taken = self.claiming.take(place)
            except OSError as error:
                refuse(self.sweep, error)
                return
            if taken is not None:
                self.claims[taken.planned.cell.key] = taken.claim
                yield self._begun(taken)

    def _begun(self, taken: ClaimedCell) -> Planned:
        """Note a cell that is about to begin."""
        planned, place = taken.planned, taken.place
        cell = planned.cell
        self.places[cell.key] = place
        planned.no_data = self.ready(self.claiming.plan.entries[place].data) or None
        self.board.numbers[cell.key] = str(place + 1)
        self.state.begin(cell.key, self.sweep.titles[cell.key])
        self.count += 1
        return planned

    def _known(self, planned: Planned) -> tuple[Status, str] | None:
        shorter = self.claiming.shorter(self.places[planned.cell.key])
        known = ending(planned, shorter, self.store)
        if known is None and planned.run.runner.trains:
            try:
                check_batch(planned.run, loaded=True)
            except ConfigError as error:
                return Status.unsupported, str(error)
        return known

    def _on_message(self, job: isolate.Job, message: object) -> None:
        super()._on_message(job, message)
        if isinstance(message, Progress):
            self.state.advance(job.name, message)

    def _ended(self, cell: Cell, outcome: str, status: str) -> None:
        super()._ended(cell, outcome, status)
        self.state.end(cell.key, status)
        place = self.places.pop(cell.key)
        del self.by_key[cell.key]
        if status == STOPPED:
            self.claiming.apart[place] = "was stopped here from outside"
        else:
            self.claiming.over.add(place)
