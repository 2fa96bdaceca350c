"""The process that writes runs while their cells run: events come in, a line of JSON each.

It knows which run a cell belongs to, what of it is written already, and what its stored rows say
once it has ended. It writes to W&B or for TensorBoard: whatever opens runs as `Backend` does.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

from lra.reports.dashboard.backend import Backend, OpenRun
from lra.reports.dashboard.describe import BASELINES, Description, describe
from lra.reports.dashboard.events import say
from lra.reports.dashboard.keys import LENGTH_AXIS, REASON, STATUS, STEP_AXIS
from lra.reports.dashboard.plan import RunPlan, contents, plan_run, run_id, score_of
from lra.reports.dashboard.state import (
    REPORT,
    RUN,
    Mirrored,
    StateFiles,
    forget_files,
    forget_older_reports,
    taken,
    write_state,
)
from lra.runners.records import Status, legible

_KILLED = 255
"""Exit code of a run that somebody stopped."""
LONGEST = 200
"""Characters of an error's text."""
_WAITS_S = 20.0
"""For a run that another process has, which may have been killed just now."""
_NICE = 10
"""What is measured goes before what is written about it."""


class RunTaken(OSError):
    """Another process writes a run."""


class Stored(Protocol):
    """What a store says of cells that have ended: see `lra.sweep.live_process`."""

    def rows(self, cells: Collection[str]) -> Sequence[Mapping[str, Any]]:
        """Return the rows of cells that have some."""
        ...

    def about(self, cell: str) -> Mapping[str, Any]:
        """Return identity and configuration of a cell."""
        ...


def main(stored: Callable[[Path], Stored]) -> None:
    """Read a job, then events, from standard input; print a JSON line for what is to be known."""
    os.nice(_NICE)
    job = json.loads(sys.stdin.readline())
    try:
        backend = _backend(job)
    except ImportError as error:
        say(event="failed", reason=f"{error.name} cannot be imported")
        return
    if reason := backend.check():
        say(event="offline", reason=reason)
    say(event="ready")
    runs = Runs(job, backend, stored(Path(job["root"])))
    for line in sys.stdin:
        event = json.loads(line)
        try:
            if event["event"] == "settle":
                runs.close()
                say(event="settled")
            else:
                runs.take(event)
        except RunTaken as error:
            say(event="lost", cell=str(event["cell"]), reason=str(error))
        except Exception as error:  # noqa: BLE001 - whatever W&B or a dead service may raise
            runs.lose(event, legible(str(error), LONGEST) or type(error).__name__)
    runs.close()
    with suppress(Exception):
        backend.finish()


def _backend(job: Mapping[str, Any]) -> Backend:
    if job["kind"] == "tensorboard":
        from lra.reports.dashboard.tensorboard_runs import TensorBoardRuns

        return TensorBoardRuns(job)
    from lra.reports.dashboard.wandb_runs import WandbRuns

    return WandbRuns(job)


@dataclass(slots=True)
class _Live:
    """One run under way."""

    id: str
    group: str
    open: OpenRun
    lock: Any
    cells: dict[str, str]
    """Those in it, and the hash of the rows of each; "" before its end."""
    waiting: set[str]
    """Those of this process that have not ended."""
    about: dict[str, dict[str, Any]] = field(default_factory=dict)
    statuses: dict[str, str] = field(default_factory=dict)
    reason: str = ""
    plan: RunPlan | None = None
    last: int = -1
    written: set[tuple[float, str]] = field(default_factory=set)
    """Places on an axis and keys that have a value."""


class Runs:
    """All runs of one process, by id."""

    def __init__(self, job: Mapping[str, Any], backend: Backend, stored: Stored) -> None:
        self.backend, self.stored = backend, stored
        self.folder = Path(job["folder"])
        self.state = StateFiles(self.folder)
        self.sweep = str(job["sweep"])
        self.alone = bool(job["alone"])
        """Whether each cell has a run of its own, and comes with all that is to be known of it:
        of a sweep that many processes share."""
        self.agent = job.get("agent")
        """Run and sweep of W&B that an agent has opened for the one cell; None: there is none."""
        self.planned: dict[str, dict[str, Any]] = {each["cell"]: each for each in job["cells"]}
        self.runs: dict[str, _Live] = {}
        self.homes: dict[str, str] = {}
        """The open run of each cell that has begun."""

    def take(self, event: Mapping[str, Any]) -> None:
        """Do what an event asks for."""
        cell, kind = str(event["cell"]), event["event"]
        if kind == "begun":
            self._begin(event)
        elif kind == "report":
            self._report(RunPlan.from_json(event["plan"]), event["content"], event["cells"])
        elif kind == "progress" and cell in self.homes:
            self._log(self.runs[self.homes[cell]], int(event["step"]), event["values"])
        elif kind == "row" and cell in self.homes:
            row = SimpleNamespace(
                metric=event["metric"],
                labels=event["labels"],
                split=event["labels"].get("split", ""),
                baseline="",
            )
            run = self.runs[self.homes[cell]]
            self._log(run, int(event["step"]), {score_of(row): float(event["value"])})
        elif kind == "ended":
            if cell not in self.homes:  # it ended without having begun
                self._begin(event)
            self._end(self.runs[self.homes.pop(cell)], event)
        elif kind == "left":
            begun = self.homes.pop(cell, None) is not None
            for run in [r for r in self.runs.values() if cell in r.waiting]:
                run.waiting.discard(cell)
                run.reason = run.reason or (str(event["reason"]) if begun else "")
                self._finish_if_over(run)

    def _begin(self, event: Mapping[str, Any]) -> None:
        cell = str(event["cell"])
        if self.alone:
            self.planned[cell] = event["planned"]
        group = str(self.planned[cell]["group"])
        for run in self.runs.values():
            if run.group == group:
                break
        else:
            run = self._open(event, group)
        run.about[cell] = dict(event["about"])
        run.cells.setdefault(cell, "")
        self.homes[cell] = run.id
        self._remember(run)

    def _open(self, event: Mapping[str, Any], group: str) -> _Live:
        cell = str(event["cell"])
        together = [cell]
        if not self.alone:
            together = [key for key, each in self.planned.items() if each["group"] == group]
        name, lock = self._taken(cell, group, together)
        was = self.state.of(name)  # as it is now that nobody else writes it
        cells = dict(was.cells) if was is not None else {}
        # Where a cell that had ended is done again, its run begins again as well.
        done = [key for key, content in cells.items() if content]
        now = contents(self.stored.rows(done)) if done else {}
        again = [key for key in done if now.get(key) != cells[key]]
        cells = {key: content for key, content in cells.items() if key not in again}
        before = Path(was.path) if was is not None and not again else None
        about = event["about"]
        described = describe(
            [self.planned[key]["columns"] for key in together],
            [about["config"]],
            model=about["model"],
            sweep=self.sweep,
            cells=together,
            title_suffix=about["apart"],
        )
        try:
            opened = self.backend.open(
                name,
                described,
                curve=about["curve"],
                process=event.get("process") if about["trains"] else None,
                before=before,
            )
        except BaseException:
            lock.release()
            raise
        waiting = {key for key in together if self.planned[key]["waiting"]}
        self.runs[name] = run = _Live(name, group, opened, lock, cells, waiting)
        run.last = opened.steps - 1
        run.written |= opened.there
        return run

    def _taken(self, cell: str, group: str, together: Sequence[str]) -> tuple[str, Any]:
        """Return the run of a cell, and the lock by which this process has it.

        Raises:
            RunTaken: Another process has it.
        """
        names = [run_id(self.sweep, cell) if self.agent is None else str(self.agent["run"])]
        if not self.alone and self.agent is None:
            names = [*self._names(cell, group, together), *names]
        until = time.monotonic() + (_WAITS_S if self.alone else 0.0)
        while True:
            for name in names:
                if (lock := taken(self.folder, name)) is not None:
                    return name, lock
            if time.monotonic() >= until:
                raise RunTaken(f"another process writes the run of cell {cell}")
            time.sleep(0.2)

    def _names(self, cell: str, group: str, together: Sequence[str]) -> list[str]:
        """Return the runs that a cell may belong to, that of its group last."""
        state = self.state.now()
        runs = {k: v for k, v in state.items() if (v.sweep, v.kind) == (self.sweep, RUN)}
        names = [name for name, was in runs.items() if cell in was.cells]
        names += [name for name, was in runs.items() if was.live and was.group == group]
        homeless = [k for k in together if not any(k in was.cells for was in runs.values())]
        return [*names, run_id(self.sweep, *sorted(homeless or together))]

    def _log(self, run: _Live, step: int, values: Mapping[str, float]) -> None:
        """Log numbers at an optimiser step, unless the run has it from before."""
        if step < max(run.open.steps, run.last):
            return
        run.last = step
        run.open.log({STEP_AXIS: float(step), **values}, step)
        run.written |= {(float(step), key) for key in values}

    def _end(self, run: _Live, event: Mapping[str, Any]) -> None:
        """Complete a run by the rows that are stored of a cell of it."""
        cell = str(event["cell"])
        run.waiting.discard(cell)
        run.statuses[cell] = str(event["status"])
        if event["status"] != Status.ok:
            run.reason = run.reason or str(event["reason"])
        others = [key for key, content in run.cells.items() if content and key != cell]
        for key in others:
            run.about.setdefault(key, {**run.about[cell], **self.stored.about(key)})
        rows = self.stored.rows([*others, cell])
        for key in others:  # some may have ended before this process
            of_cell = (str(row["status"]) for row in rows if row["cell"] == key)
            bad = next((status for status in of_cell if status != Status.ok), Status.ok)
            run.statuses.setdefault(key, bad)
        hashes = contents(rows)
        run.plan = plan_run(
            rows,
            run.id,
            sweep=self.sweep,
            cells=run.about,
            names={key: about["model"] for key, about in run.about.items()},
            title_suffixes={k: v["apart"] for k, v in run.about.items() if v["apart"] is not None},
        )
        for line in run.plan.history:
            self._add(run, line)
        run.cells |= hashes
        if run.group != BASELINES:  # whose keys name tasks only where there are several
            run.open.complete(run.plan)
        self._finish_if_over(run)

    def _add(self, run: _Live, line: Mapping[str, float]) -> None:
        """Log what a line of the stored rows has and the run has not."""
        axis = LENGTH_AXIS if LENGTH_AXIS in line else STEP_AXIS
        place = line[axis]
        fresh = {
            key: value
            for key, value in line.items()
            if key != axis and (place, key) not in run.written
        }
        if not fresh:
            return
        if axis == LENGTH_AXIS:
            run.open.log({axis: place, **fresh}, run.open.steps, last=True)
            run.open.steps += 1
            run.written |= {(place, key) for key in fresh}
        elif place >= max(run.open.steps, run.last):
            self._log(run, int(place), fresh)

    def _finish_if_over(self, run: _Live) -> None:
        if run.waiting:
            return
        if not run.statuses:
            self._finish(run, "stopped", _KILLED)
        elif Status.ok in run.statuses.values():  # of a curve, that may be a part
            self._finish(run, None, 0)
        else:
            self._finish(run, next(iter(run.statuses.values())), 1)

    def _finish(self, run: _Live, status: str | None, exit_code: int) -> None:
        del self.runs[run.id]
        for cell in [cell for cell, home in self.homes.items() if home == run.id]:
            del self.homes[cell]
        summary = {name: text for name, text in ((STATUS, status), (REASON, run.reason)) if text}
        try:
            if run.group == BASELINES and run.plan is not None:
                run.open.complete(run.plan)
            run.open.end(summary, exit_code)
        except Exception as error:  # noqa: BLE001 - the others are to be ended all the same
            say(event="unsent", reason=legible(str(error), LONGEST), path=str(run.open.path))
            self._remember(run, ended=True, mode="offline")
        else:
            say(event="written", path=str(run.open.path), mode=self.backend.mode)
            self._remember(run, ended=True)
            forget_files(run.id, keep=run.open.path)
        run.lock.release()

    def _remember(self, run: _Live, *, ended: bool = False, mode: str | None = None) -> None:
        """Write down what a run holds: until its end nothing that is sure to be there."""
        state = Mirrored(
            content="",
            path=str(run.open.path),
            mode=mode or self.backend.mode,
            sweep=self.sweep,
            kind=RUN,
            cells=run.cells if ended else dict.fromkeys(run.cells, ""),
            live=True,
            group=run.group,
        )
        write_state(self.folder, run.id, state)

    def _report(self, plan: RunPlan, content: str, cells: Mapping[str, str]) -> None:
        """Write the run that holds tables, figures and all rows; others of less give way to it."""
        lock = taken(self.folder, plan.id)
        if lock is None:
            raise RunTaken(f"another process writes the report {plan.name}")
        # Its files must outlive this process until they are sent, and no longer than the report.
        staged = self.folder / "data" / plan.id
        shutil.rmtree(staged, ignore_errors=True)
        os.environ["WANDB_DATA_DIR"] = str(staged)
        about = Description(
            name=plan.name, job_type=plan.job_type, tags=plan.tags, config=plan.config
        )
        try:
            run = self.backend.open(plan.id, about, curve=False, process=None, before=None)
            run.complete(plan)
            run.end({}, 0)
            state = Mirrored(
                content=content,
                path=str(run.path),
                mode=self.backend.mode,
                sweep=self.sweep,
                kind=REPORT,
                cells=cells,
            )
            write_state(self.folder, plan.id, state)
            forget_files(plan.id, keep=run.path)
            forget_older_reports(self.folder, self.state.now(), plan.id)
        finally:
            lock.release()

    def lose(self, event: Mapping[str, Any], reason: str) -> None:
        """Note that an event could not be written: the rows are copied at the end of the sweep."""
        say(event="lost", cell=str(event["cell"]), reason=reason)
        if self.backend.mode == "online":
            self.backend.mode = "offline"
            say(event="offline", reason=reason)
            if event["event"] == "begun":
                try:
                    self._begin(event)
                except Exception as error:  # noqa: BLE001 - as above
                    say(event="lost", cell=str(event["cell"]), reason=legible(str(error), LONGEST))

    def close(self) -> None:
        """End what is left: its cells were stopped, and go on another time."""
        for run in list(self.runs.values()):
            self._finish(run, "stopped", _KILLED)
