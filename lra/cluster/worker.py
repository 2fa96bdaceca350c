"""A worker: runs cells of a plan, one after the other, until none is left that it can take."""

import logging
import os
import socket
import sys
import time
from collections import Counter
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from lra.cluster import code
from lra.cluster.cells import SharedPlan, WorkerOptions
from lra.cluster.claiming import Claiming
from lra.cluster.engine import AGAIN, STORAGE, UNTIL, WorkerGroup
from lra.cluster.growth import PlanGrowth
from lra.cluster.plan import HEAD, BadPlan, StoredPlan, TornPart, mark_of
from lra.cluster.reporting import report_once
from lra.cluster.state import WorkerState
from lra.cluster.worker_log import WorkerLog
from lra.composition.class_path import NotNamed
from lra.conf import system_errors
from lra.conf.short_values import number_of
from lra.execution.executor import Executor
from lra.runners.storage.atomic import StorageFault, fault_of
from lra.runners.store import Store
from lra.sweep.sweep_logger import SweepLogger
from lra.sweep.users import at_work
from lra.tasks.data.signals import StopSignal, stoppable
from lra.terminal.board import UNENDED, ProgressBoard, ending_words
from lra.terminal.wording import time_words

FIRST_S, LONGEST_S = 0.2, 5.0
"""Shortest and longest wait before looking again, while other workers run what is left."""
PAUSES_S = system_errors.WAITS_S[5:]
"""Pauses after a fault of the storage, before the work is tried again. Each single call of the
system has been repeated before that."""


class _ToLog(logging.Handler):
    """Writes into the log of a worker that a call of the system failed and is repeated."""

    def __init__(self, worker: "Worker") -> None:
        """Take the worker whose log gets the lines."""
        super().__init__()
        self.worker = worker

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        self.worker.say(record.getMessage())


def default_name() -> str:
    """Return a name for this process's worker."""
    return f"{socket.gethostname()}-{os.getpid()}"


class Worker:
    """One worker and its plan, which it reads again when more cells have been submitted."""

    def __init__(self, plan: StoredPlan, options: WorkerOptions) -> None:
        """Open the log, the state file and the dashboard of a worker, and take its first plan."""
        self.options, self.folder = options, plan.folder
        self.store = Store(plan.root)
        self.log = WorkerLog(plan.folder / "logs" / f"{options.name}.log", options.echo)
        self.state = WorkerState(plan.folder, options.name, options.group or "")
        self.begun, self.why = time.monotonic(), ""
        self.since: float | None = None
        """Since when it has found no cell to take, by the monotonic clock; None: it has work."""
        self.waits = FIRST_S
        self.checked = self.failed = False
        """Whether code and storage were checked; whether the storage failed in the last turn."""
        self.ended, self.pauses = 0, iter(PAUSES_S)
        """Runs that had ended at the last fault of the storage, and the pauses that are left."""
        self.growth = PlanGrowth(plan.folder)
        self.data: dict[str, str] = {"": ""}
        """By the data that it has tried to prepare: why that failed; "" if it has not. The key ""
        stands for runs without data."""
        self.board = ProgressBoard([], {}, out=self.log, err=self.log)
        self.logger = SweepLogger(plan.listed())
        self.use(plan)

    def use(self, plan: StoredPlan) -> None:
        """Take the cells of this plan from now on."""
        self.plan, self.seen = plan, plan.mark
        until = None if (text := os.environ.get(UNTIL)) is None else float(text)
        self.claiming = Claiming(plan, self.store, self.options.name, self._find_group(), until)
        sweep = plan.listed()
        self.board.titles, self.board.total = sweep.titles, len(plan.entries)
        if self.logger.sweep.logger != plan.logger:
            self.logger = SweepLogger(sweep)
        self.logger.sweep = sweep
        self.cells = SharedPlan(
            self.claiming,
            self.options,
            self.board,
            self.state,
            self.logger,
            self.data,
            self.changed,
        )
        self.executor = Executor(self.cells, self.store, self.board, self.logger)

    def _find_group(self) -> WorkerGroup | None:
        """Return the group in the plan that `--group` names; None: no group. Raises BadPlan."""
        name = self.options.group
        if name is None:
            return None
        groups = {group.name: group for group in self.plan.groups}
        if name not in groups:
            raise BadPlan(
                f"--group: got {name}; wanted a group in the plan of {self.plan.sweep}: "
                f"{', '.join(groups) or 'none'}"
            )
        return groups[name]

    def say(self, line: str) -> None:
        """Write a line into the log."""
        self.board.say(line, always=True)

    def run(self) -> int:
        """Work until nothing is left, and return the exit code."""
        self.say(
            f"worker {self.options.name} starts on the sweep {self.plan.sweep}, which has "
            f"{len(self.plan.entries):,} runs; results are in {self.plan.root}"
        )
        for line in self.store.strangers(remove=True):  # claims that were copied with the folder
            self.say(line)
        ended = 1
        log_handler = _ToLog(self)
        system_errors.log.addHandler(log_handler)
        try:
            with stoppable(), self._at_work(), self.board:
                ended = self._run()
        except StopSignal as stopped:
            ended = 128 + stopped.number
            self.say(f"stopped by {stopped.number.name}")
        except BaseException as error:
            ended = 2 if isinstance(error, BadPlan | code.OtherCode | OSError) else 1
            self.why = str(error) or type(error).__name__
            self.say(f"stopped by {type(error).__name__}: {error}")
            raise
        finally:
            self._log_end(ended)
            system_errors.log.removeHandler(log_handler)
            self.log.close()
        return ended

    def _at_work(self) -> AbstractContextManager[None]:
        """Return a context that records this worker as a user of the results and of the data."""
        data = any(entry.data for entry in self.plan.entries)
        return at_work(self.plan.root, self.plan.sweep, data=data, worker=self.options.name)

    def _run(self) -> int:
        """Take turns until one of them returns an exit code."""
        while True:
            try:
                ended = self._take_turn()
            except OSError as error:
                fault = fault_of(error)
                if fault is None:
                    raise
                ended = self._wait_after_fault(fault)
            if ended is not None:
                return ended

    def _take_turn(self) -> int | None:
        """Run the cells that can be taken now.

        Returns the exit code if the worker has to end, and None if another turn follows.
        """
        if not self.checked:
            code.check(self.plan)
            self.store.check_writable()
            self.checked = True
        if self.changed() or self.failed:  # an open file may be of no use after a fault
            self._reload()
            self.failed = False
        before = self.cells.count
        ended = self.executor.run()
        if ended.stopped_by is not None:
            self.say(f"{ended.stopped_by.name} stops this worker, which has saved its current run")
            return 128 + ended.stopped_by
        if ended.refused is not None:
            return self._wait_after_fault(StorageFault(ended.refused, ended.may_pass))
        if self.cells.count > before or self.changed() or self._extend_plan():
            self.since = None
            return None
        if self.claiming.short_of_time:
            self.say("the remaining runs need more time than this job has left")
            return AGAIN
        idle_s = 0.0 if self.since is None else time.monotonic() - self.since
        if self.since is None:
            self.since, self.waits = time.monotonic(), FIRST_S
        if (why := self._reason_to_end(idle_s)) is not None:
            self.say(why)
            fault = self.claiming.torn or self.claiming.unnamed  # why a cell was set aside
            self.why = "" if fault is None else str(fault)
            return 0 if fault is None else 2
        time.sleep(self.waits)
        self.waits = min(LONGEST_S, 1.5 * self.waits)
        return None

    def _wait_after_fault(self, fault: StorageFault) -> int | None:
        """Wait after a fault of the storage; return None to go on, or the exit code.

        Each fault in a row has a longer pause, until `PAUSES_S` has no more.
        """
        ended = sum(n for how, n in self.board.endings.items() if how not in UNENDED)
        if ended > self.ended:
            # A run has ended since the last fault, so that the storage did work: begin again.
            self.ended, self.pauses = ended, iter(PAUSES_S)
        pause = next(self.pauses, None) if fault.may_pass else None
        if pause is None:
            self.why = fault.words
            self.say(f"stopped: {self.why}")
            return STORAGE if fault.may_pass else 2
        self.say(
            f"storage failed; the current run is saved and resumes in {pause:.0f} s: {fault.words}"
        )
        time.sleep(pause)
        self.failed = True
        return None

    def _extend_plan(self) -> bool:
        """Return whether the plan belongs to a search that has just got more cells."""
        try:
            return self.growth.extend(self.plan, self.claiming.left(), self.say)
        except NotNamed as error:
            self.claiming.unnamed = error
            self.say(f"the search cannot continue here: {error}")
            return False

    def changed(self) -> bool:
        """Return whether the file of the plan is another one than this worker has read."""
        try:
            return mark_of((self.folder / HEAD).stat()) != self.seen
        except OSError:
            return False  # the folder cannot be read now: go on with the plan that is open

    def _reload(self) -> None:
        """Read the plan again; where it is damaged, go on with the one that was read before."""
        with suppress(OSError):  # gone again: the next turn looks once more
            self.seen = mark_of((self.folder / HEAD).stat())
        try:
            before, plan = self.plan, StoredPlan(self.folder)
        except TornPart as error:
            self.say(f"this worker continues with the plan that it has read before: {error}")
            return
        if plan.mark != before.mark:
            code.check(plan)
            self.say(
                "a new `lra submit` command has changed the plan, which now has "
                f"{number_of(len(plan.entries), 'run')}"
            )
        self.use(plan)
        before.close()

    def _reason_to_end(self, idle_s: float) -> str | None:
        """Return why this worker should end, or None if it should wait for other workers.

        Args:
            idle_s: Seconds for which it has found no cell to take.
        """
        left, claiming = self.claiming.left(), self.claiming
        total = len(self.plan.entries)
        if not left:
            self.store.clear_claims({entry.key for entry in self.plan.entries})
            self._report()
            endings = ", ".join(ending_words(claiming.endings()))
            return f"the sweep {self.plan.sweep} has ended, {number_of(total, 'run')}: {endings}"
        possible = [place for place in left if place not in claiming.set_aside]
        entries = self.plan.entries
        claimed = {entries[place].key for place in left} & claiming.busy
        if not possible:
            reasons = Counter(claiming.set_aside[place] for place in left).most_common(3)
            listed = "; ".join(f"{number_of(count, 'run')}: {why}" for why, count in reasons)
            return (
                f"{len(left):,} of {total:,} runs remain, but this worker can run none ({listed})"
            )
        longest_wait = self.options.wait_s
        longest_wait = float(self.plan.head["wait_s"]) if longest_wait is None else longest_wait
        state = (
            f"{len(left):,} of {total:,} runs remain, and other workers have claimed "
            f"{len(claimed):,} of them"
        )
        if idle_s > longest_wait:
            return f"this worker found no run for {time_words(idle_s)}: {state}"
        if not claimed and idle_s > 3 * LONGEST_S:  # nobody has claimed one in several looks
            return f"this worker found no run, and no other worker is active: {state}"
        if idle_s == 0:
            holders = self.store.claims()
            holder_counts = Counter(
                h.worker or f"{h.host} {h.pid}" for k, h in holders.items() if k in claimed
            )
            names = ", ".join(name for name, _ in holder_counts.most_common(3))
            self.say(f"this worker waits: {state}{f' ({names})' if names else ''}")
        self.state.say("waiting for others")
        return None

    def _report(self) -> None:
        """Write the report of the complete sweep, unless another worker does."""
        report_once(self.plan, self.logger, self.say, self.log)

    def _log_end(self, code: int) -> None:
        """Log how this worker ends, and write it into its state."""
        took = time_words(time.monotonic() - self.begun)
        endings = ", ".join(ending_words(self.board.endings))
        self.say(f"the worker ends with {code} after {took}: {endings or 'it executed no run'}")
        self.state.over(code, self.why)


def work(folder: Path, options: WorkerOptions) -> int:
    """Work on the plan in a folder; return the exit code.

    Raises:
        BadPlan: it cannot be used.
        OtherCode: it was written with other code.
    """
    try:
        worker = system_errors.persistent(lambda: Worker(StoredPlan(folder), options))
        return worker.run()
    except OSError as error:
        return storage_code(error)


def storage_code(error: OSError) -> int:
    """Print a fault of storage that may pass, and return `STORAGE`; others are raised again."""
    fault = fault_of(error)
    if fault is None or not fault.may_pass:
        raise error
    print(f"lra: {fault.words}", file=sys.stderr)
    return STORAGE
