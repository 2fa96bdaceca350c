"""A worker: takes cells of a plan, one after the other, until there are no more to take."""

import os
import socket
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, cast

from lra.cluster import code
from lra.cluster.cells import PlanCells
from lra.cluster.claiming import ClaimedCell, Claiming
from lra.cluster.engine import AGAIN, UNTIL, WorkerGroup
from lra.cluster.live_cells import LiveCells
from lra.cluster.machine import machine
from lra.cluster.plan import HEAD, BadPlan, PlanTitles, StoredPlan, Torn, mark_of
from lra.cluster.state import WorkerState
from lra.cluster.worker_log import WorkerLog
from lra.sweep.cell_list import Sweep
from lra.sweep.cells import Lookups
from lra.sweep.places import processes
from lra.terminal.board import LEFT, STOPPED, ProgressBoard
from lra.terminal.wording import spent
from runners.isolation.places import Places
from runners.measurement.hardware import available_bytes
from runners.measurement.training_places import shared_places
from runners.records import Status
from runners.store import Store
from tasks.data.signals import Stopped, stoppable
from tasks.errors import BadData, NotPrepared

FIRST_S, LONGEST_S = 0.2, 5.0
"""Waits between two looks while others hold what is left."""
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


def own_name() -> str:
    """Return a name for this process's worker."""
    return f"{socket.gethostname()}-{os.getpid()}"


class Worker:
    """One worker and its plan, which it reads again where somebody has submitted more cells."""

    def __init__(self, plan: StoredPlan, options: WorkerOptions) -> None:
        self.options, self.folder = options, plan.folder
        self.store = Store(plan.root)
        self.log = WorkerLog(plan.folder / "logs" / f"{options.name}.log", options.echo)
        self.state = WorkerState(plan.folder, options.name, options.group or "")
        self.begun, self.why = time.monotonic(), ""
        self.data: dict[str, str] = {"": ""}
        """Data that were tried, and why they cannot be had; "": they can."""
        self.live: LiveCells | None = None
        self.use(plan)
        out = cast(TextIO, self.log)
        self.board = ProgressBoard([], self.sweep.titles, out=out, err=out)
        self.board.total = len(plan.entries)

    def use(self, plan: StoredPlan) -> None:
        """Work on a plan from now on."""
        self.plan, self.seen = plan, plan.mark
        until = None if (text := os.environ.get(UNTIL)) is None else float(text)
        self.claiming = Claiming(plan, self.store, self.options.name, self._group(), until)
        self.sweep = Sweep(plan.sweep, plan.root, plan.control, plan.logger, [], PlanTitles(plan))
        if self.live is not None and self.live.sweep.logger != plan.logger:
            self._close_live()
        if self.live is None:
            self.live = LiveCells(self.sweep, self.say)
        self.live.sweep = self.sweep

    def _group(self) -> WorkerGroup | None:
        name = self.options.group
        if name is None:
            return None
        groups = {group.name: group for group in self.plan.groups}
        if name not in groups:
            raise BadPlan(
                f"--group {name}: the plan of {self.plan.sweep} has {', '.join(groups) or 'none'}"
            )
        return groups[name]

    def say(self, line: str) -> None:
        """Write a line into the log."""
        self.board.say(line, always=True)

    def run(self) -> int:
        """Work until nothing is left, and return the exit code."""
        self.say(
            f"worker {self.options.name} of sweep {self.plan.sweep}: {len(self.plan.entries):,} "
            f"cells, results in {self.plan.root}"
        )
        for word in self.store.strangers(remove=True):
            self.say(word)
        ended = 1
        try:
            with stoppable(), self.board:
                ended = self._run()
        except Stopped as stopped:
            ended = 128 + stopped.number
            self.say(f"stopped by {stopped.number.name}")
        except BaseException as error:
            ended = 2 if isinstance(error, BadPlan | code.OtherCode | OSError) else 1
            self.why = str(error) or type(error).__name__
            self.say(f"stopped by {type(error).__name__}: {error}")
            raise
        finally:
            self._close_live()
            self._summary(ended)
            self.log.close()
        return ended

    def _run(self) -> int:
        code.check(self.plan)
        self.store.check_writable()
        since: float | None = None
        waits = FIRST_S
        while True:
            if self.changed():
                self._reload()
            ran = self._pass()
            if self.sweep.stopped_by is not None:
                self.say(f"stopped by {self.sweep.stopped_by.name}: what ran is saved")
                return 128 + self.sweep.stopped_by
            if self.sweep.refused is not None:
                self.why = self.sweep.refused
                self.say(f"stopped: {self.why}")
                return 2
            if ran:
                since = None
                continue
            if self.claiming.short_of_time:
                self.say("what is left would not end in the time that this job has left")
                return AGAIN
            idle_s = 0.0 if since is None else time.monotonic() - since
            if since is None:
                since, waits = time.monotonic(), FIRST_S
            if (why := self._reason_to_end(idle_s)) is not None:
                self.say(why)
                fault = self.claiming.torn or self.claiming.unnamed
                self.why = "" if fault is None else str(fault)
                return 0 if fault is None else 2
            time.sleep(waits)
            waits = min(LONGEST_S, 1.5 * waits)

    def changed(self) -> bool:
        """Tell whether somebody has submitted the sweep again."""
        try:
            return mark_of((self.folder / HEAD).stat()) != self.seen
        except OSError:
            return False  # a folder that hiccups, or is gone: what is open goes on

    def _reload(self) -> None:
        with suppress(OSError):  # gone again: it is looked at once more
            self.seen = mark_of((self.folder / HEAD).stat())
        try:
            before, plan = self.plan, StoredPlan(self.folder)
        except Torn as error:
            self.say(f"what was read of the plan before goes on: {error}")
            return
        code.check(plan)
        self.use(plan)
        self.board.titles, self.board.total = self.sweep.titles, len(plan.entries)
        before.close()
        self.say(f"the sweep was submitted again: {len(plan.entries):,} cells")

    def _pass(self) -> int:
        """Run what can be taken of one kind; return how many cells that were."""
        self.claiming.look()
        while (place := next(self.claiming.possible(), None)) is not None:
            timed = self.plan.entries[place].timed
            with machine(alone=timed, waiting=self._waiting_for_machine):
                taken = self.claiming.take(place)
                if taken is None:
                    continue
                try:
                    if (why := self._not_here(taken)) is not None:
                        self.claiming.set_aside[taken.place] = why
                        taken.claim.release()
                        continue
                    self._prepare(taken)
                except BaseException:
                    taken.claim.release()
                    raise
                return self._run_kind(taken, timed=timed)
        return 0

    def _waiting_for_machine(self) -> None:
        self.say("waiting until what reads the clock has this machine for itself")
        self.state.say("waiting for the machine")

    def _run_kind(self, first: ClaimedCell, *, timed: bool) -> int:
        live = self.live
        assert live is not None, "closed at the end alone"
        live.begin(first.planned.cell)
        available = available_bytes()
        most = sys.maxsize if available is None else max(1, available // LEAST_BYTES)
        cells = PlanCells(
            self.sweep,
            self.claiming,
            self.board,
            self.state,
            first,
            live=live,
            ready=self.data.get,
            device=Lookups().device_of(first.planned.run.hardware),
            sharers=1 if timed else min(self.options.peers, most),
            changed=self.changed,
        )
        cells.run(self._places(first))
        return cells.count

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
        try:
            self._places(taken)
        except ValueError as error:
            return str(error)
        entry, cell = self.plan.entries[taken.place], taken.planned.cell
        if not entry.timed:
            return None
        hardware = taken.planned.run.hardware
        try:
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
        name = self.plan.entries[taken.place].data
        if name in self.data:
            return
        task = taken.planned.run.task
        self.state.say(f"preparing {task.spec.name}")
        fault = ""
        try:
            with self.board.preparing(task.spec.name):
                task.prepare()
        except (NotPrepared, BadData) as error:
            fault = str(error)
        self.data[name] = fault

    def _reason_to_end(self, idle_s: float) -> str | None:
        """Return why there is nothing more to do here, or None where it pays to stay."""
        left, claiming = self.claiming.left(), self.claiming
        total = len(self.plan.entries)
        if not left:
            self.store.clear_claims({entry.key for entry in self.plan.entries})
            self._close_live()  # others may wait for its runs
            self._report()
            return f"all {total:,} cells of {self.plan.sweep} are complete"
        possible = [place for place in left if place not in claiming.set_aside]
        entries = self.plan.entries
        held = {entries[place].key for place in left} & claiming.busy
        if not possible:
            reasons = Counter(claiming.set_aside[place] for place in left).most_common(3)
            listed = "; ".join(f"{count:,} cells: {why}" for why, count in reasons)
            return f"nothing left for this worker: {len(left):,} of {total:,} left ({listed})"
        most = self.options.wait_s
        most = float(self.plan.head["wait_s"]) if most is None else most
        others = f"{len(left):,} of {total:,} cells are left, {len(held):,} of them held by others"
        if idle_s > most:
            return f"nothing to take for {spent(idle_s)}: {others}"
        if not held and idle_s > 3 * LONGEST_S:
            return f"nothing can be taken, and nobody works: {others}"
        if idle_s == 0:
            holders = self.store.claims()
            by = Counter(h.worker or f"{h.host} {h.pid}" for k, h in holders.items() if k in held)
            named = ", ".join(name for name, _ in by.most_common(3))
            self.say(f"waiting: {others}{f' ({named})' if named else ''}")
        self.state.say("waiting for others")
        return None

    def _close_live(self) -> None:
        live, self.live = self.live, None
        if live is not None:
            live.close()

    def _report(self) -> None:
        from lra.cluster.reporting import report_once

        report_once(self.plan, self.say, cast(TextIO, self.log))

    def _summary(self, code: int) -> None:
        order = [*map(str, Status), STOPPED, LEFT]
        endings = self.board.endings
        counted = [f"{endings[s]} {s.replace('_', ' ')}" for s in order if endings[s]]
        took = spent(time.monotonic() - self.begun)
        self.say(f"worker ends with {code} after {took}: {', '.join(counted) or 'no cell run'}")
        self.state.over(code, self.why)


def work(folder: Path, options: WorkerOptions) -> int:
    """Work on the plan in a folder; return the exit code.

    Raises:
        BadPlan: it cannot be used.
        OtherCode: it was written with other code.
    """
    return Worker(StoredPlan(folder), options).run()
