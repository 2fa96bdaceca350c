"""Which cells of a plan a worker can take now, and the claims on them."""

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
        group: its kind of workers; None: no limits.
        until: by `time.time()`, when its scheduler ends it; None: never.
    """

    def __init__(
        self,
        plan: StoredPlan,
        store: Store,
        worker: str,
        group: WorkerGroup | None,
        until: float | None = None,
    ) -> None:
        self.plan, self.store, self.worker = plan, store, worker
        self.retry = plan.control.retry
        """What any run of the sweep repeats: a cell that is taken says itself whether it is."""
        self.planned_ns = plan.mark[0]
        self.index = RowsIndex(store.root)
        """Only read: a hundred workers would write it again and again."""
        self.over: set[int] = set()
        """Places of cells that are known to be complete."""
        self.set_aside: dict[int, str] = {}
        """Places of cells that are not for this worker, and why."""
        self.torn: TornPart | None = None
        """What was wrong with the plan at the place of a cell, which was set aside."""
        self.unnamed: NotNamed | None = None
        """What package a cell needs that was set aside for want of it."""
        self.busy: set[str] = set()
        """Keys of cells that others hold, when that was last looked at."""
        self.tasks: dict[str, Task] = {}
        fitting = range(len(plan.entries))
        if group is not None:
            for place, entry in enumerate(plan.entries):
                if not group.resources.hold(entry.needs):
                    self.set_aside[place] = "needs more than this worker has"
                elif group.timed is False and entry.timed:
                    self.set_aside[place] = "is timed, and other workers use this machine"
        self.until, self.whole_s = until, None if until is None else until - time.time()
        self.short_of_time = False
        """Whether a cell that cannot be saved half-way was left for want of time."""
        self.order = _order(plan.entries, fitting, plan.groups, random.Random(worker))

    def look(self) -> None:
        """See who holds what now."""
        self.busy = {*self.store.claims()}

    def is_over(self, place: int) -> bool:
        """Tell whether a cell is complete: also where its rows, of this plan, are to be retried."""
        if place in self.over:
            return True
        entry = self.plan.entries[place]
        if not self.index.complete(entry):
            return False
        if not self.index.complete(entry, self.retry, NO_DATA):
            rows = self.store.rows_file(entry.key, entry.fingerprint)
            try:
                if persistent(rows.stat).st_mtime_ns < self.planned_ns:
                    return False  # written before somebody asked for another attempt
            except FileNotFoundError:
                return False  # moved away just now
        self.over.add(place)
        return True

    def left(self) -> list[int]:
        """Return the places of the cells that are not complete, whoever may take them."""
        return [place for place in self.order if not self.is_over(place)]

    def endings(self) -> Counter[str]:
        """Return how many cells of the plan ended in each way."""
        found = (self.index.summary(entry.key, entry.fingerprint) for entry in self.plan.entries)
        failures = (failure_of(summary) for summary in found if summary is not None)
        return Counter(Status.ok if bad is None else bad.status for bad in failures)

    def possible(self, runner: str | None = None) -> Iterator[int]:
        """Yield the places of the cells that could be tried, of one kind or of any."""
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
        """Tell whether a cell can end here; trainings go on elsewhere from a checkpoint."""
        seconds = entry.needs.seconds
        if not entry.timed or seconds is None or self.until is None or self.whole_s is None:
            return True
        # What no job has the time for is tried: an estimate may be wrong.
        return seconds <= self.until - time.time() or seconds > self.whole_s

    def take(self, place: int) -> ClaimedCell | None:
        """Claim a cell, or a training of it whose weights are gone; None where another has it.

        Raises:
            OSError: the store cannot be written.
        """
        try:
            for source in self.plan.entries[place].trainings:
                if self._gone(source):
                    return self._taken(source, again=True)
            return self._taken(place)
        except TornPart as error:  # the others go on
            self.torn, self.set_aside[place] = error, str(error)
        except NotNamed as error:
            self.unnamed, self.set_aside[place] = error, str(error)
        return None

    def _gone(self, place: int) -> bool:
        """Tell whether a training is complete, and its weights are not there."""
        cell, store = self.plan.cell(place), self.store
        return missing_weights(cell, store) is not None and store.statuses(cell) == {Status.ok}

    def _taken(self, place: int, *, again: bool = False) -> ClaimedCell | None:
        entry, title = self.plan.entries[place], self.plan.title(place)
        check_named(self.plan.record(place)["config"]["plugins"])
        claim = self.store.claim(entry.key, title=title, worker=self.worker)
        if claim is None:
            self.busy.add(entry.key)
            return None
        with ExitStack() as held:
            held.callback(claim.release)
            self.store.see_anew(entry.key)
            if self._gone(place) if again else not self.is_over(place):
                planned = self._planned(place)
                planned.again = again
                if again or not is_done(planned, self.store):
                    taken = ClaimedCell(planned, claim, self._shorter(place))
                    held.pop_all()
                    return taken
                self.over.add(place)
        return None

    def _planned(self, place: int) -> PlannedCell:
        plan, cell = self.plan, self.plan.cell(place)
        names, sources = plan.record(place)["starts_from"], plan.entries[place].trainings
        trainings = {name: plan.cell(source) for name, source in zip(names, sources, strict=True)}
        return PlannedCell(cell, typed(cell.config, self.tasks), trainings)

    def _shorter(self, place: int) -> list[Cell]:
        shorter: list[Cell] = []
        before = self.plan.entries[place].shorter
        while before is not None:
            shorter.append(self.plan.cell(before))
            before = self.plan.entries[before].shorter
        return shorter


def _order(
    entries: Sequence[PlanEntry],
    places: Sequence[int],
    groups: Sequence[WorkerGroup],
    chance: random.Random,
) -> list[int]:
    """Return the order in which a worker tries cells.

    The largest class first, then the turns of the sweep; within a turn each worker begins somewhere
    else, so that a hundred of them do not want the same cell.
    """
    sizes = [group.resources for group in groups]

    def size(entry: PlanEntry) -> int:
        return next((n for n, held in enumerate(sizes) if held.hold(entry.needs)), len(sizes))

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
