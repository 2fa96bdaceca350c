"""Finds the cells of a plan that a worker can run now, and claims them.

A place is the number of a cell in the plan's list of cells.
"""

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from lra.cluster.engine import WorkerGroup
from lra.cluster.plan import PlanEntry, StoredPlan, TornPart
from lra.composition.class_path import NotNamed, check_named
from lra.composition.compose import typed
from lra.conf.system_errors import persistent
from lra.execution.executor import ClaimedCell
from lra.runners.records import Cell, Status
from lra.runners.storage.index import RowsIndex
from lra.runners.store import Store
from lra.sweep.planned_cells import NO_DATA, is_done
from lra.sweep.sweep import PlannedCell
from lra.sweep.trainings import missing_weights
from lra.tasks.task import Task
from lra.terminal.progress import failure_of


class Claiming:
    """The cells of a plan as one worker sees them.

    Args:
        plan: the plan.
        store: the results.
        worker: name of the worker.
        group: the kind of workers that it is one of, with their resources; None: no limits.
        until: time at which its scheduler ends it, as of `time.time()`; None: never.
    """

    def __init__(
        self,
        plan: StoredPlan,
        store: Store,
        worker: str,
        group: WorkerGroup | None,
        until: float | None = None,
    ) -> None:
        """Set aside the cells that the group cannot run, and order the others for this worker."""
        self.plan, self.store, self.worker = plan, store, worker
        self.retry = plan.control.retry
        """The statuses that some run of the sweep has repeated. This is only a first sieve: before
        a cell is claimed, its own options decide (`is_done`)."""
        self.planned_ns, _ = plan.mark
        """When the plan was written, in nanoseconds since 1970."""
        self.index = RowsIndex(store.root)
        """Only read here, as a hundred workers would write it again and again."""
        self.over: set[int] = set()
        """Places of cells that are known to be complete."""
        self.set_aside: dict[int, str] = {}
        """Places of cells that are not for this worker, and why."""
        self.torn: TornPart | None = None
        """What was wrong with the plan at the place of a cell, which was set aside."""
        self.unnamed: NotNamed | None = None
        """What package a cell needs that was set aside for want of it."""
        self.busy: set[str] = set()
        """Keys of cells that other workers had claimed at the last `look`."""
        self.tasks: dict[str, Task] = {}
        fitting = range(len(plan.entries))
        if group is not None:
            for place, entry in enumerate(plan.entries):
                if not group.resources.hold(entry.needs):
                    self.set_aside[place] = "the run needs more resources than this worker has"
                elif group.timed is False and entry.timed:
                    self.set_aside[place] = "a timed run needs a machine without other workers"
        self.until, self.whole_s = until, None if until is None else until - time.time()
        """`whole_s`: the seconds that a job gives to its worker in all; None: no limit."""
        self.short_of_time = False
        """Whether a timed cell, which cannot be interrupted, was not taken for lack of time."""
        self.order = _order_places(plan.entries, fitting, plan.groups, random.Random(worker))

    def look(self) -> None:
        """Read which cells are claimed now."""
        self.busy = {*self.store.claims()}

    def is_over(self, place: int) -> bool:
        """Return whether a cell needs no more work.

        A failure that is to be repeated counts as complete once its rows are newer than the plan:
        then it has been repeated already.
        """
        if place in self.over:
            return True
        entry = self.plan.entries[place]
        if not self.index.complete(entry):
            return False
        if not self.index.complete(entry, self.retry, NO_DATA):
            rows = self.store.rows_file(entry.key, entry.fingerprint)
            try:
                if persistent(rows.stat).st_mtime_ns < self.planned_ns:
                    return False  # the rows are older than the command that asks to repeat them
            except FileNotFoundError:
                return False  # another process has just moved them away
        self.over.add(place)
        return True

    def left(self) -> list[int]:
        """Return the places of the cells that are not complete, whoever may take them."""
        return [place for place in self.order if not self.is_over(place)]

    def endings(self) -> Counter[str]:
        """Return how many cells of the plan ended in each way."""
        all_rows = (self.index.summary(e.key, e.fingerprint) for e in self.plan.entries)
        failures = (failure_of(summary) for summary in all_rows if summary is not None)
        return Counter(Status.ok if failed is None else failed.status for failed in failures)

    def possible(self, runner: str | None = None) -> Iterator[int]:
        """Yield the places of the cells that this worker could claim now.

        Args:
            runner: only cells of this runner; None: of all.
        """
        for place in self.order:
            entry = self.plan.entries[place]
            if runner is not None and entry.runner != runner:
                continue
            if place in self.set_aside or entry.key in self.busy or self.is_over(place):
                continue
            if all(self.is_over(source) for source in entry.trainings) and (
                entry.shorter is None or self.is_over(entry.shorter)
            ):
                if self._ends_in_time(entry):
                    yield place
                else:
                    self.short_of_time = True

    def _ends_in_time(self, entry: PlanEntry) -> bool:
        """Return whether a cell can end before this worker is ended.

        Only a timed cell has to: a training continues elsewhere from its checkpoint.
        """
        seconds = entry.needs.seconds
        if not entry.timed or seconds is None or self.until is None or self.whole_s is None:
            return True
        # A cell longer than a whole job is tried all the same, as its estimate may be wrong.
        return seconds <= self.until - time.time() or seconds > self.whole_s

    def take(self, place: int) -> ClaimedCell | None:
        """Claim the cell at a place; None if another worker has it, or it cannot be read here.

        Where the weights of a training that it starts from are gone, that training is claimed.

        Raises:
            OSError: the store cannot be written.
        """
        try:
            for source in self.plan.entries[place].trainings:
                if self._lost_weights(source):
                    return self._claim(source, again=True)
            return self._claim(place)
        except TornPart as error:  # this cell is set aside, and the worker takes other ones
            self.torn, self.set_aside[place] = error, str(error)
        except NotNamed as error:
            self.unnamed, self.set_aside[place] = error, str(error)
        return None

    def _lost_weights(self, place: int) -> bool:
        """Return whether a training has succeeded, and its weights have been removed since."""
        cell, store = self.plan.cell(place), self.store
        return missing_weights(cell, store) is not None and store.statuses(cell) == {Status.ok}

    def _claim(self, place: int, *, again: bool = False) -> ClaimedCell | None:
        """Claim a cell and check under the claim that it is still to be run.

        With `again`, it is a complete training that is run again for its lost weights.
        """
        entry, title = self.plan.entries[place], self.plan.title(place)
        check_named(self.plan.record(place)["config"]["plugins"])
        claim = self.store.claim(entry.key, title=title, worker=self.worker)
        if claim is None:
            self.busy.add(entry.key)
            return None
        with ExitStack() as on_return:
            on_return.callback(claim.release)
            self.store.see_anew(entry.key)  # another worker may have done it just before the claim
            still_to_do = self._lost_weights(place) if again else not self.is_over(place)
            if still_to_do:
                planned = self._load_planned(place)
                planned.again = again
                if again or not is_done(planned, self.store):
                    taken = ClaimedCell(planned, claim, self._list_shorter(place))
                    on_return.pop_all()  # the claim stays with the cell
                    return taken
                self.over.add(place)
        return None

    def _load_planned(self, place: int) -> PlannedCell:
        """Return a cell of the plan with its typed run and the trainings that it starts from."""
        plan, cell = self.plan, self.plan.cell(place)
        names, sources = plan.record(place)["starts_from"], plan.entries[place].trainings
        trainings = {name: plan.cell(source) for name, source in zip(names, sources, strict=True)}
        return PlannedCell(cell, typed(cell.config, self.tasks), trainings)

    def _list_shorter(self, place: int) -> list[Cell]:
        """Return the cells of the same curve at shorter lengths, the longest first."""
        shorter: list[Cell] = []
        before = self.plan.entries[place].shorter
        while before is not None:
            shorter.append(self.plan.cell(before))
            before = self.plan.entries[before].shorter
        return shorter


def _order_places(
    entries: Sequence[PlanEntry],
    places: Sequence[int],
    groups: Sequence[WorkerGroup],
    chance: random.Random,
) -> list[int]:
    """Return the places of cells in the order in which a worker tries them.

    Cells that need the most resources come first, then the order of the sweep counts. Within one
    step of that order each worker begins at another cell (by `chance`), so that a hundred workers
    do not all try to claim the same one.
    """
    sizes = [group.resources for group in groups]

    def size(entry: PlanEntry) -> int:
        """Return how many groups come before the first that can run a cell."""
        return next((n for n, limit in enumerate(sizes) if limit.hold(entry.needs)), len(sizes))

    parts: dict[tuple[int, int, str], list[int]] = {}
    for place in places:
        entry = entries[place]
        parts.setdefault((-size(entry), entry.turn, entry.runner), []).append(place)
    order = []
    for key in sorted(parts):
        group = parts[key]
        start = chance.randrange(len(group))
        order += [*group[start:], *group[:start]]
    return order
