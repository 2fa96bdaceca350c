"""Finds how far a sweep is, from its plan, rows and claims, and the states that workers write."""

import os
import shutil
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from lra.cluster.engine import QUEUED, RUNNING, SUSPENDED
from lra.cluster.jobs import JobStanding, job_lines
from lra.cluster.plan import PlanEntry, StoredPlan
from lra.cluster.reporting import lacking_report
from lra.cluster.state import is_killed, is_over, read_states
from lra.composition.spelling import in_results
from lra.conf.plain_files import open_file
from lra.conf.system_errors import NO_INODES, room_left
from lra.runners.records import Status, legible
from lra.runners.storage.homes import COPIED, Home
from lra.runners.storage.index import CellSummary, RowsIndex, statuses
from lra.runners.store import Store
from lra.sweep.planned_cells import NO_DATA
from lra.terminal.board import ending_words
from lra.terminal.progress import failure_of
from lra.terminal.wording import ahead, time_words

BAD = frozenset({Status.crashed, Status.diverged, Status.out_of_memory, Status.timeout})
"""Statuses that count as failures; skipped and unsupported cells were excluded on purpose."""
RECENT_S = 3600.0
"""The rate, in runs per hour, is computed over this many seconds."""
KILLED = "gone (killed)"
"""What is shown of a worker that was killed, and so could not write how it ended."""


class CellEnd(NamedTuple):
    """How a cell ended."""

    status: str
    reason: str
    at: float
    bad: bool = False
    """Whether it failed, or lacked its data."""


class RunningCell(NamedTuple):
    """A cell that a worker has claimed."""

    key: str
    title: str
    worker: str
    host: str
    since: float | None
    progress: str
    left_s: float | None
    """Seconds to the end of its present phase; None: not known."""


@dataclass(slots=True, kw_only=True)
class Standing:
    """How far a sweep is now."""

    sweep: str
    total: int
    done: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    failures: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    """Keys of cells by status and reason."""
    running: list[RunningCell] = field(default_factory=list)
    workers: list[Mapping[str, Any]] = field(default_factory=list)
    """The states that workers have written, those with a running cell first."""
    jobs: list[JobStanding] = field(default_factory=list)
    """The jobs of the workers, as the cluster reports them."""
    ended: Counter[str] = field(default_factory=Counter)
    """Workers that ended with an error, by the reason."""
    resume: str = ""
    """What to do to resume the sweep if no worker is active, in words."""
    unwritten: str = ""
    """What workers still write, such as the report, after the last cell has ended; "" for nothing.
    """
    notes: list[str] = field(default_factory=list)
    """What else a person should know, in sentences."""
    per_hour: float | None = None
    """Cells that ended per hour, over the last hour; None: none has ended."""
    left_s: float | None = None
    """Seconds to the end; None: not known, or nobody works."""

    def count(self, key: str, ended: CellEnd) -> None:
        """Count a cell that has its rows."""
        self.done += 1
        self.endings[ended.status] += 1
        if ended.bad:
            self.failures.setdefault((ended.status, ended.reason), []).append(key)

    @property
    def left(self) -> int:
        """Cells without rows."""
        return self.total - self.done

    @property
    def code(self) -> int:
        """The exit code of `lra watch`: 3 if cells are left, 1 if some have failed, else 0."""
        if self.left:
            return 3
        return 1 if self.failures else 0


class Watcher:
    """Looks at a sweep again and again; the rows of a cell that has ended are read only once."""

    def __init__(self, plan: StoredPlan) -> None:
        """Take a plan. `ended` keeps how its cells ended, by place, from one look to the next."""
        self.plan, self.store, self.index = plan, Store(plan.root), RowsIndex(plan.root)
        self.ended: dict[int, CellEnd] = {}

    def look(self) -> Standing:
        """Return how far the sweep is now."""
        plan, claims = self.plan, self.store.claims()
        workers, states = read_states(plan.folder), dict[str, Mapping[str, Any]]()
        for name, state in workers.items():
            home = Home.of_note(state.get("home"))
            # The state of an active worker may have been copied here with the folder.
            if is_over(state) or home is None or not home.is_strange(plan.folder):
                killed = {"doing": KILLED, "cells": {}} if is_killed(state) else {}
                states[name] = {**state, **killed}
        standing = Standing(sweep=plan.sweep, total=len(plan.entries))
        worker_command = f"lra work {plan.sweep}{in_results(plan.root)}"
        standing.resume = f"type {worker_command}, or rerun the same lra submit command"
        standing.ended = early_endings(plan, states)
        standing.notes = [*self.store.strangers(remove=False), *room_lines(plan.root)]
        if foreign := len(workers) - len(states):
            standing.notes.append(f"{foreign:,} workers belong to another folder, {COPIED}")
        reports = {
            key: {**doing, "worker": name}
            for name, state in states.items()
            for key, doing in state.get("cells", {}).items()
        }
        for place, entry in enumerate(plan.entries):
            claim = claims.get(entry.key)
            if claim is None and (place in self.ended or self._read(place, entry)):
                standing.count(entry.key, self.ended[place])
            elif claim is not None:
                self.ended.pop(place, None)  # the cell runs again, although it has rows
                doing = reports.get(entry.key, {})
                worker = claim.worker or str(doing.get("worker", "")) or f"{claim.host} {claim.pid}"
                standing.running.append(
                    RunningCell(entry.key, claim.title or str(doing.get("title", entry.key)),
                        worker, claim.host, doing.get("since"), _progress(doing),
                        doing.get("left_s"))
                )  # fmt: skip
        busy_workers = {cell.worker for cell in standing.running}
        standing.workers = sorted(
            states.values(),
            key=lambda s: (s["worker"] not in busy_workers, _has_ended(s), s["worker"]),
        )
        if not standing.left and (lacking := lacking_report(plan)):
            if all(map(_has_ended, standing.workers)):
                command = f"lra report --sweep {plan.sweep}{in_results(plan.root)}"
                standing.notes.append(f"{lacking} must still be written: type {command}")
            else:
                standing.unwritten = lacking
                standing.notes.append(f"a worker is writing {lacking}")
        self._set_rate(standing)
        self.index.write()
        return standing

    def _read(self, place: int, entry: PlanEntry) -> bool:
        """Read how a cell ended; return whether it has."""
        summary = self.index.summary(entry.key, entry.fingerprint)
        if summary is None:  # or damaged: it is run again
            return False
        self.ended[place] = _read_end(summary)
        return True

    def _set_rate(self, standing: Standing) -> None:
        """Set the rate and the remaining time of `standing`.

        The rate is that of the last hour. If no worker is active, it is that of the hour before the
        last cell ended. The remaining time follows from the rate, and is at least as long as the
        forecasts of the plan and the reports of running cells say.
        """
        entries, now = self.plan.entries, time.time()
        last = max((ended.at for ended in self.ended.values()), default=now)
        until = now if standing.running else last
        since = max(float(self.plan.head["made"]), until - RECENT_S)
        recent = [place for place, ended in self.ended.items() if ended.at >= since]
        speed = 0.0  # weight of the cells that end, per second
        # Cells count by their forecast time if the plan has one for each, else all count alike.
        estimated = all(entry.needs.seconds is not None for entry in entries)

        def weight(place: int) -> float:
            """Return how much a cell counts: seconds, or 1."""
            return (entries[place].needs.seconds or 1.0) if estimated else 1.0

        if recent and until > since:
            standing.per_hour = len(recent) * 3600 / (until - since)
            speed = sum(map(weight, recent)) / (until - since)
        if standing.running:
            work_left = sum(
                weight(place) for place in range(len(entries)) if place not in self.ended
            )
            least, all_known = self._least(standing.running, now)
            if speed or all_known:  # the first cells of a sweep are its short ones
                standing.left_s = max(work_left / speed if speed else 0.0, least)

    def _least(self, running: Sequence[RunningCell], now: float) -> tuple[float, bool]:
        """Return a lower bound of the seconds left, and whether the time of every cell is known."""
        entries, seconds_left, all_known = self.plan.entries, list[float](), True
        for cell in running:
            planned = entries[self.plan.places[cell.key]].needs.seconds
            passed = 0.0 if cell.since is None else now - cell.since
            seconds_left.append(max(cell.left_s or 0.0, (planned or 0.0) - passed))
            all_known = all_known and (planned is not None or cell.left_s is not None)
        running_keys = {cell.key for cell in running}
        waiting = [
            entry.needs.seconds
            for place, entry in enumerate(entries)
            if place not in self.ended and entry.key not in running_keys
        ]
        # All remaining work, divided among the workers that run a cell now.
        least = (sum(seconds_left) + sum(seconds or 0.0 for seconds in waiting)) / len(seconds_left)
        return max(*seconds_left, least), all_known and None not in waiting


def of_stored(root: Path, name: str) -> Standing:
    """Return how far a sweep of `lra run` is, from its cells, their rows and their claims."""
    store = Store(root)
    keys, claims = store.cells_of(name), store.claims()
    standing = Standing(sweep=name, total=len(keys), notes=[*room_lines(root)],
                        resume="rerun the same lra run command")  # fmt: skip
    for key, summary in statuses(root, (key for key in keys if key not in claims)).items():
        standing.count(key, _read_end(summary))
    standing.running = [
        RunningCell(key, claims[key].title or key, f"{claims[key].host} {claims[key].pid}",
                    claims[key].host, None, "", None)
        for key in keys if key in claims
    ]  # fmt: skip
    return standing


def _read_end(summary: CellSummary) -> CellEnd:
    """Return how a cell ended, from the summary of its rows."""
    ended_at = datetime.fromisoformat(summary.created).timestamp()
    failed_row = failure_of(summary)
    if failed_row is None:
        return CellEnd(Status.ok, "", ended_at)
    lacks_data = NO_DATA.items() <= failed_row.labels.items()
    return CellEnd(
        failed_row.status, failed_row.reason, ended_at, lacks_data or failed_row.status in BAD
    )


def _has_ended(state: Mapping[str, Any]) -> bool:
    """Return whether a worker wrote how it ended, or was killed."""
    return is_over(state) or state["doing"] == KILLED


def _progress(state: Mapping[str, Any]) -> str:
    """Return in words how far a cell is; "" if its worker has not reported on it."""
    phase, done, total, left_s = map(state.get, ("phase", "done", "total", "left_s"))
    if phase is None:
        return ""
    text = str(phase)
    if total:
        # The phase of training itself has no name.
        text = f"{phase} {done:,} of {total:,}" if phase else f"step {done:,}/{total:,}"
    return text if left_s is None else f"{text}, {ahead(left_s)} left"


def sweep_lines(standing: Standing, titles: Mapping[str, str], most: int) -> Iterator[str]:
    """Yield the lines that `lra watch` prints about a sweep.

    `titles` are the names of cells by key. At most `most` running cells, and as many kinds of
    failures, are listed. A host is omitted if the name of the worker begins with it.
    """
    share = standing.done / max(1, standing.total)
    running, waiting = len(standing.running), standing.left - len(standing.running)
    parts = [*ending_words(standing.endings), f"{running:,} running", f"{waiting:,} waiting"]
    yield (
        f"sweep {standing.sweep}: {standing.done:,} of {standing.total:,} runs have ended "
        f"({share:.0%}): {', '.join(parts)}"
    )
    rate = [] if standing.per_hour is None else [f"{standing.per_hour:,.0f} runs per hour"]
    if standing.left and standing.left_s is not None:
        rate.append(f"about {ahead(standing.left_s)} left")
    if standing.left and not standing.running:
        may_start = any(
            jobs.states[state] for jobs in standing.jobs for state in (QUEUED, RUNNING, SUSPENDED)
        )
        rate.append(
            "no worker has started yet"
            if may_start
            else f"no worker is active. To resume: {standing.resume}"
        )
    if rate:
        yield ", ".join(rate)
    yield from standing.notes
    if standing.left:
        for why, count in standing.ended.most_common(3):
            yield f"{count:,} worker{'s' if count > 1 else ''} ended: {why}"
    yield from job_lines(standing.jobs)
    now = time.time()
    for cell in standing.running[:most]:
        duration = "" if cell.since is None else f" for {time_words(max(0.0, now - cell.since))}"
        where = cell.worker if cell.worker.startswith(cell.host) else f"{cell.worker} {cell.host}"
        progress = f": {cell.progress}" if cell.progress else ""
        yield f"  {cell.title}{progress} (on {where}{duration})"
    if (more := len(standing.running) - most) > 0:
        yield f"  and {more:,} more"
    for (status, reason), keys in list(standing.failures.items())[:most]:
        first = titles[keys[0]]
        others = f" and {len(keys) - 1:,} more" if len(keys) > 1 else ""
        yield f"{first}{others} ended as {status}: {reason} (lra show {keys[0]})"


def worker_lines(standing: Standing, most: int) -> Iterator[str]:
    """Yield a line for each worker: what it does, has done, and its host if the name lacks it."""
    now, this_host = time.time(), socket.gethostname()
    for state in standing.workers[:most]:
        endings = ", ".join(f"{count} {status}" for status, count in state["endings"].items())
        age = now - float(state["at"])
        last_report = (
            f"; its last report is {age:,.0f} s old" if age > 60 and not _has_ended(state) else ""
        )
        host = "" if state["host"] == this_host or state["worker"].startswith(state["host"]) else (
            f" on {state['host']}"
        )  # fmt: skip
        ended = endings or "no finished run"
        yield f"  worker {state['worker']}{host}: {state['doing']}, {ended}{last_report}"
    if (more := len(standing.workers) - most) > 0:
        yield f"  and {more:,} more workers"


OUTPUTS = ("logs/start-*.log", "slurm/*_log.out")
"""Where standard error of workers goes, below a plan's folder."""
COMPLAINT, STOPPED = "lra: ", " stopped: "
MOST_READ = 20_000
"""Bytes of the end of a log."""
LEAST_ROOM = 2**20
"""With fewer bytes free, a worker cannot be expected to begin."""


def early_endings(plan: StoredPlan, states: Mapping[str, Mapping[str, Any]]) -> Counter[str]:
    """Return why workers ended with an error since the plan was last submitted, with counts.

    On a full disk a worker may be unable to write its state. Its log is then read as well, as the
    last block of a log often has room for one more line.
    """
    since, reasons = float(plan.head["made"]), Counter[str]()
    for name, state in states.items():
        if state.get("at", 0.0) >= since and state["doing"] == KILLED:
            reasons["somebody killed the worker, or the memory was full"] += 1
        code = str(state.get("doing", "")).removeprefix("ended with ")
        if state.get("at", 0.0) >= since and code.isdecimal() and code not in ("0", "143"):
            # 0: no work was left; 143: SIGTERM stopped it.
            why = state.get("why") or _last(plan.folder / "logs" / f"{name}.log", STOPPED)
            reasons[legible(str(why)) if why else f"with {code}"] += 1
    for path in sorted(output for pattern in OUTPUTS for output in plan.folder.glob(pattern)):
        with suppress(OSError):
            why = _last(path, COMPLAINT) if path.stat().st_mtime >= since else ""
            if why and legible(why) not in reasons:
                reasons[legible(why)] += 1
    return reasons


def room_lines(root: Path) -> Iterator[str]:
    """Yield a sentence if the disk of the results folder is full."""
    with suppress(OSError):
        room = room_left(root)
        if shutil.disk_usage(root).free < LEAST_ROOM or room.startswith(NO_INODES):
            yield (
                f"no space is left in {root} ({room}), so that workers end; free some space and "
                "start the workers again"
            )


def _last(path: Path, mark: str) -> str:
    """Return the text behind `mark` in the last line of a log with this mark; "" if none has it."""
    try:
        with os.fdopen(open_file(path), "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - MOST_READ))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    marked = [line for line in lines if mark in line]
    return marked[-1].partition(mark)[2].strip() if marked else ""
