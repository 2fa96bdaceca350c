"""Runs a sweep in one process, with its plan in memory."""

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from lra.execution.executor import CellGroup, ClaimedCell, Executor, prepare_task
from lra.runners.isolation.isolate import start_server
from lra.runners.isolation.progress import Progress
from lra.runners.records import Cell, Status
from lra.runners.store import Store
from lra.sweep.batch_check import check_batch
from lra.sweep.estimate import announcement, forecasts
from lra.sweep.places import kind_of, places_for, processes
from lra.sweep.planned_cells import (
    clear_leftovers,
    compared_with,
    curve,
    curves,
    data_of,
    enter,
    is_done,
    missing_training,
    not_done,
)
from lra.sweep.sweep import PlannedCell, Sweep, SweepOutcome
from lra.sweep.sweep_logger import SweepLogger
from lra.sweep.trainings import missing_weights
from lra.sweep.users import at_work
from lra.tasks.errors import BadData, NotPrepared
from lra.terminal.board import LEFT, ProgressBoard
from lra.terminal.volume import Volume


def execute(
    sweep: Sweep,
    volume: Volume = Volume.normal,
    begin: Callable[[], None] | None = None,
    until: float = math.inf,
    *,
    logger: SweepLogger | None = None,
) -> SweepOutcome:
    """Run the cells of a sweep that are not complete. Each ends with rows in the store.

    Args:
        sweep: The sweep.
        volume: How much is printed.
        begin: Called after all checks, before the first cell; None: nothing is called.
        until: The time of the monotonic clock at which all work is stopped.
        logger: The dashboard; None: the one that the options of the sweep name.
    """
    sweep.store.check_writable()
    data = any(planned.run.runner.data for planned in sweep.planned)
    with at_work(sweep.root, sweep.name, data=data):
        return _execute(sweep, volume, begin, until, logger or SweepLogger(sweep))


def _execute(
    sweep: Sweep,
    volume: Volume,
    begin: Callable[[], None] | None,
    until: float,
    logger: SweepLogger,
) -> SweepOutcome:
    """Do the work of `execute`, whose arguments it has."""
    store = sweep.store
    enter(sweep.name, sweep.planned, store)  # stores which cells belong to the sweep
    waiting = not_done(sweep.planned, store)
    waiting = [*_trained_again(waiting, sweep, store), *waiting]
    foreign_claims = store.strangers(remove=True)  # of a folder of which this one is a copy
    complete = clear_leftovers(sweep.planned, waiting, store)
    board = ProgressBoard([planned.cell for planned in waiting], sweep.titles, volume=volume)
    for line in foreign_claims:
        board.say(line)
    if complete:
        board.say(f"{complete} of {len(sweep.planned)} runs are finished already and are skipped")
    if not waiting:
        if begin is not None:
            begin()
        return SweepOutcome()
    start_server()  # it imports modules for cells while this process plans
    expected = announcement(forecasts(waiting, store, sweep.name, together=True))
    board.say(f"sweep {sweep.name}: {expected}; results in {sweep.root}")
    executor = Executor(MemoryPlan(sweep, waiting, board), store, board, logger, until)
    with board:
        _prepare(waiting, sweep.planned, board)
        if begin is not None:
            begin()
        if line := logger.check():
            board.say(line)
        executor.run()
        unfinished = {planned.cell.key for planned in waiting} - executor.outcome.endings.keys()
        executor.outcome.late &= bool(unfinished)  # not late if all cells ended just in time
    board.summary(str(sweep.root))
    return executor.outcome


def _trained_again(waiting: Sequence[PlannedCell], sweep: Sweep, store: Store) -> list[PlannedCell]:
    """Return complete trainings that must be repeated, because cells need their lost weights."""
    waiting_keys = {p.cell.key for p in waiting}
    complete = {p.cell.key: p for p in sweep.planned if p.cell.key not in waiting_keys}
    needed = dict.fromkeys(cell.key for p in waiting for cell in p.trainings.values())
    return [
        replace(complete[key], again=True)
        for key in needed
        if key in complete
        and store.statuses(complete[key].cell) == {Status.ok}
        and missing_weights(complete[key].cell, store)
    ]


def _prepare(
    waiting: Sequence[PlannedCell], every: Sequence[PlannedCell], board: ProgressBoard
) -> None:
    """Prepare the data, and then check batches against the numbers of examples."""
    prepare_data(waiting, every, board)
    for planned in waiting:
        if planned.run.runner.trains and planned.no_data is None:
            check_batch(planned.run, loaded=True)


def prepare_data(
    waiting: Iterable[PlannedCell], every: Sequence[PlannedCell], board: ProgressBoard
) -> None:
    """Prepare the data of every task, once, before a cell needs them.

    If data cannot be prepared, the reason is stored in their cells (`no_data`), and other cells
    run. If this concerns every cell in `every`, the error is raised.
    """
    faults: dict[tuple[str, ...], NotPrepared | BadData | None] = {}
    for planned in waiting:
        if not planned.run.runner.data:
            continue
        data = data_of(planned)
        if data not in faults:
            faults[data] = prepare_task(planned.run.task, board)
        if (fault := faults[data]) is not None:
            planned.no_data = str(fault)
    fault = next((fault for fault in faults.values() if fault is not None), None)
    if fault is not None and all(planned.no_data for planned in every):
        raise fault


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The plan of `lra run`: claims the waiting cells of a sweep, one kind after the other."""

    sweep: Sweep
    waiting: Sequence[PlannedCell]
    board: ProgressBoard

    def groups(self) -> Generator[CellGroup]:
        """Yield a group for each kind of cells (see `kind_of`), which share places."""
        kinds: dict[tuple[object, ...], list[PlannedCell]] = {}
        for planned in self.waiting:
            kinds.setdefault(kind_of(planned), []).append(planned)
        for group in kinds.values():
            by_curve = curves(planned.cell for planned in group)
            lanes: dict[int, list[PlannedCell]] = {}
            for planned in group:
                lanes.setdefault(processes(planned.run), []).append(planned)
            claimed = {width: self._claim_together(lane, by_curve) for width, lane in lanes.items()}
            yield CellGroup(claimed, places_for(group))

    def _claim_together(
        self, lane: Sequence[PlannedCell], by_curve: Mapping[str, Sequence[Cell]]
    ) -> Iterator[Sequence[ClaimedCell]]:
        """Yield sets of claimed cells that are timed together; any other cell comes alone."""
        together: dict[object, list[PlannedCell]] = {}
        for planned in lane:
            together.setdefault(compared_with(planned), []).append(planned)
        for cells in together.values():
            with ExitStack() as on_error:
                claimed = []
                for claimed_cell in self._claim_each(cells, by_curve):
                    on_error.callback(claimed_cell.claim.release)
                    claimed.append(claimed_cell)
                on_error.pop_all()  # without an error, the claims stay with the cells
            if claimed:
                yield claimed

    def _claim_each(
        self, lane: Sequence[PlannedCell], by_curve: Mapping[str, Sequence[Cell]]
    ) -> Iterator[ClaimedCell]:
        """Yield the cells that this process can claim; print why another cell is skipped."""
        store, titles = self.sweep.store, self.sweep.titles
        for planned in lane:
            cell = planned.cell
            claim = store.claim(cell.key, title=titles[cell.key])
            if claim is None:
                self._leave(cell, "this run is skipped: another sweep is working on it")
                continue
            with ExitStack() as on_return:
                on_return.callback(claim.release)
                if (source := missing_training(planned, store)) is not None:
                    self._leave(
                        cell,
                        f"this run is skipped: {titles[source.key]} is not finished; rerun this "
                        "command later",
                    )
                    continue
                store.see_anew(cell.key)  # another host may have stored its rows a moment ago
                gone = planned.again and missing_weights(cell, store) is not None
                if is_done(planned, store) and not gone:
                    self._leave(cell, "another sweep has just finished this run", Status.ok)
                    continue
                on_return.pop_all()  # from here on, the claim stays with the cell
                yield ClaimedCell(planned, claim, by_curve.get(curve(cell), ()) if by_curve else ())

    def _leave(self, cell: Cell, why: str, status: str = LEFT) -> None:
        """Print why a cell is not run."""
        self.board.finish(cell, why, status)

    def advance(self, key: str, message: Progress) -> None:
        """Do nothing: the board shows the progress."""

    def ended(self, key: str, status: str) -> None:
        """Do nothing: this plan gives each cell only once."""
