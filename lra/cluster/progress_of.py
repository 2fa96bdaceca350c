"""How far a sweep is: from its plan, its rows, its claims and what workers say of themselves."""

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
"""Endings that are failures; what is skipped or unsupported was left out on purpose."""
RECENT_S = 3600.0
"""The rate is that of the last hour."""
KILLED = "gone (killed)"
"""What a worker does that ended without a word."""


class CellEnd(NamedTuple):
    """How a cell ended."""

    status: str
    reason: str
    at: float
    bad: bool = False
    """Whether it failed, or lacked its data."""


class RunningCell(NamedTuple):
    """A cell that somebody holds."""

    key: str
    title: str
    worker: str
    host: str
    since: float | None
    progress: str
    left_s: float | None
    """Seconds to the end of what it does now; None: not known."""


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
    """What workers say of themselves, those that work first."""
    jobs: list[JobStanding] = field(default_factory=list)
    """What clusters say of the workers' jobs."""
    ended: Counter[str] = field(default_factory=Counter)
    """Workers that ended with an error, by the reason."""
    resume: str = ""
    """How it goes on where nobody works, in words."""
    unwritten: str = ""
    """What workers write yet of a sweep whose cells have all ended, in words."""
    notes: list[str] = field(default_factory=list)
    """What else a person should know, in sentences."""
    per_hour: float | None = None
    """Cells that ended, by the last hour."""
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
        """What `lra watch` ends with."""
        if self.left:
            return 3
        return 1 if self.failures else 0


class Watcher:
    """Looks at a sweep again and again; what has ended is read once."""

    def __init__(self, plan: StoredPlan) -> None:
        self.plan, self.store, self.index = plan, Store(plan.root), RowsIndex(plan.root)
        self.ended: dict[int, CellEnd] = {}

    def look(self) -> Standing:
        """Return how far the sweep is now."""
        plan, claims = self.plan, self.store.claims()
        workers, states = read_states(plan.folder), dict[str, Mapping[str, Any]]()
        for name, state in workers.items():
            home = Home.of_note(state.get("home"))
            if is_over(state) or home is None or not home.is_strange(plan.folder):
                gone = {"doing": KILLED, "cells": {}} if is_killed(state) else {}
                states[name] = {**state, **gone}
        standing = Standing(sweep=plan.sweep, total=len(plan.entries))
        work = f"lra work {plan.sweep}{in_results(plan.root)}"
        standing.resume = f"{work}, or rerun the same lra submit command"
        standing.ended = early_endings(plan, states)
        standing.notes = [*self.store.strangers(remove=False), *room_lines(plan.root)]
        if strange := len(workers) - len(states):
            standing.notes.append(f"{strange:,} workers belong to another folder, {COPIED}")
        telling = {
            key: {**doing, "worker": name}
            for name, state in states.items()
            for key, doing in state.get("cells", {}).items()
        }
        for place, entry in enumerate(plan.entries):
            held = claims.get(entry.key)
            if held is None and (place in self.ended or self._read(place, entry)):
                standing.count(entry.key, self.ended[place])
            elif held is not None:
                self.ended.pop(place, None)
                doing = telling.get(entry.key, {})
                worker = held.worker or str(doing.get("worker", "")) or f"{held.host} {held.pid}"
                standing.running.append(
                    RunningCell(entry.key, held.title or str(doing.get("title", entry.key)), worker,
                            held.host, doing.get("since"), _progress(doing), doing.get("left_s"))
                )  # fmt: skip
        holding = {cell.worker for cell in standing.running}
        standing.workers = sorted(
            states.values(), key=lambda s: (s["worker"] not in holding, _over(s), s["worker"])
        )
        if not standing.left and (lacking := lacking_report(plan)):
            if all(map(_over, standing.workers)):
                again = f"lra report --sweep {plan.sweep}{in_results(plan.root)}"
                standing.notes.append(f"not written: {lacking}; {again}")
            else:
                standing.unwritten = lacking
                standing.notes.append(f"being written: {lacking}")
        self._rate(standing)
        self.index.write()
        return standing

    def _read(self, place: int, entry: PlanEntry) -> bool:
        """Read how a cell ended; return whether it has."""
        summary = self.index.summary(entry.key, entry.fingerprint)
        if summary is None:  # or damaged: it is run again
            return False
        self.ended[place] = _end(summary)
        return True

    def _rate(self, standing: Standing) -> None:
        """Judge by the cells of the last hour, and by what the plan and the workers say is left.

        Where nobody works, the hour is that before the last end: waiting changes no rate.
        """
        entries, now = self.plan.entries, time.time()
        last = max((ended.at for ended in self.ended.values()), default=now)
        until = now if standing.running else last
        since = max(float(self.plan.head["made"]), until - RECENT_S)
        recent = [place for place, ended in self.ended.items() if ended.at >= since]
        work = 0.0
        # As forecast where that is known of every cell, else each as long as the others.
        estimated = all(entry.needs.seconds is not None for entry in entries)

        def weight(place: int) -> float:
            return (entries[place].needs.seconds or 1.0) if estimated else 1.0

        if recent and until > since:
            standing.per_hour = len(recent) * 3600 / (until - since)
            work = sum(map(weight, recent)) / (until - since)
        if standing.running:
            left = sum(weight(place) for place in range(len(entries)) if place not in self.ended)
            least, whole = self._least(standing.running, now)
            if work or whole:  # the first cells of a sweep are its short ones
                standing.left_s = max(left / work if work else 0.0, least)

    def _least(self, running: Sequence[RunningCell], now: float) -> tuple[float, bool]:
        """Return the seconds that those at work need at least, and whether all cells count."""
        entries, each, whole = self.plan.entries, list[float](), True
        for cell in running:
            planned = entries[self.plan.places[cell.key]].needs.seconds
            passed = 0.0 if cell.since is None else now - cell.since
            each.append(max(cell.left_s or 0.0, (planned or 0.0) - passed))
            whole = whole and (planned is not None or cell.left_s is not None)
        held = {cell.key for cell in running}
        waiting = [
            entry.needs.seconds
            for place, entry in enumerate(entries)
            if place not in self.ended and entry.key not in held
        ]
        least = (sum(each) + sum(seconds or 0.0 for seconds in waiting)) / len(each)
        return max(*each, least), whole and None not in waiting


def of_stored(root: Path, name: str) -> Standing:
    """Return how far a sweep of `lra run` is: from its cells, their rows and who holds them."""
    store = Store(root)
    keys, held = store.cells_of(name), store.claims()
    standing = Standing(sweep=name, total=len(keys), notes=[*room_lines(root)],
                        resume="rerun the same lra run command")  # fmt: skip
    for key, summary in statuses(root, (key for key in keys if key not in held)).items():
        standing.count(key, _end(summary))
    standing.running = [
        RunningCell(key, held[key].title or key, f"{held[key].host} {held[key].pid}",
                    held[key].host, None, "", None)
        for key in keys if key in held
    ]  # fmt: skip
    return standing


def _end(summary: CellSummary) -> CellEnd:
    at = datetime.fromisoformat(summary.created).timestamp()
    bad = failure_of(summary)
    if bad is None:
        return CellEnd(Status.ok, "", at)
    lacks = NO_DATA.items() <= bad.labels.items()
    return CellEnd(bad.status, bad.reason, at, lacks or bad.status in BAD)


def _over(state: Mapping[str, Any]) -> bool:
    return is_over(state) or state["doing"] == KILLED


def _progress(state: Mapping[str, Any]) -> str:
    """Return in words how far a cell is; "" where its worker says nothing of it."""
    phase, done, total, left_s = map(state.get, ("phase", "done", "total", "left_s"))
    if phase is None:
        return ""
    words = str(phase)
    if total:
        words = f"{phase} {done:,} of {total:,}" if phase else f"step {done:,}/{total:,}"
    return words if left_s is None else f"{words}, {ahead(left_s)} left"


def sweep_lines(standing: Standing, titles: Mapping[str, str], most: int) -> Iterator[str]:
    """Yield what a person sees, of running cells and of workers at most so many."""
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
        coming = any(
            jobs.states[state] for jobs in standing.jobs for state in (QUEUED, RUNNING, SUSPENDED)
        )
        rate.append(
            "no worker has started yet"
            if coming
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
        for_s = "" if cell.since is None else f" for {time_words(max(0.0, now - cell.since))}"
        where = cell.worker if cell.worker.startswith(cell.host) else f"{cell.worker} {cell.host}"
        progress = f": {cell.progress}" if cell.progress else ""
        yield f"  {cell.title}{progress} (on {where}{for_s})"
    if (more := len(standing.running) - most) > 0:
        yield f"  and {more:,} more"
    for (status, reason), keys in list(standing.failures.items())[:most]:
        first = titles[keys[0]]
        others = f" and {len(keys) - 1:,} more" if len(keys) > 1 else ""
        yield f"{status} {first}{others}: {reason} (lra show {keys[0]})"


def worker_lines(standing: Standing, most: int) -> Iterator[str]:
    """Yield a line for each worker: what it does, and what it has done."""
    now, here = time.time(), socket.gethostname()
    for state in standing.workers[:most]:
        endings = ", ".join(f"{count} {status}" for status, count in state["endings"].items())
        age = now - float(state["at"])
        seen = f", last heard from {age:,.0f} s ago" if age > 60 and not _over(state) else ""
        host = "" if state["host"] == here or state["worker"].startswith(state["host"]) else (
            f" on {state['host']}"
        )  # fmt: skip
        ended = endings or "no finished run"
        yield f"  worker {state['worker']}{host}: {state['doing']}, {ended}{seen}"
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
    """Return why workers of a plan, since it was submitted last, ended with an error.

    On a full disk a worker may not be able to write its state: its log has room where a block of it
    is not full, and where nothing says a word, a lack of space now is reported.
    """
    since, reasons = float(plan.head["made"]), Counter[str]()
    for name, state in states.items():
        if state.get("at", 0.0) >= since and state["doing"] == KILLED:
            reasons["killed by a person, or because the memory was full"] += 1
        code = str(state.get("doing", "")).removeprefix("ended with ")
        if state.get("at", 0.0) >= since and code.isdecimal() and code not in ("0", "143"):
            why = state.get("why") or _last(plan.folder / "logs" / f"{name}.log", STOPPED)
            reasons[legible(str(why)) if why else f"with {code}"] += 1
    for path in sorted(output for pattern in OUTPUTS for output in plan.folder.glob(pattern)):
        with suppress(OSError):
            why = _last(path, COMPLAINT) if path.stat().st_mtime >= since else ""
            if why and legible(why) not in reasons:
                reasons[legible(why)] += 1
    return reasons


def room_lines(root: Path) -> Iterator[str]:
    """Yield what there is to say of the space that is left for results."""
    with suppress(OSError):
        words = room_left(root)
        if shutil.disk_usage(root).free < LEAST_ROOM or words.startswith(NO_INODES):
            yield (
                f"no space is left in {root} ({words}): workers end; free some space and "
                "start them "
                "again"
            )


def _last(path: Path, mark: str) -> str:
    """Return what stands behind a mark in the last line of a log that has it; "" where none has."""
    try:
        with os.fdopen(open_file(path), "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - MOST_READ))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    marked = [line for line in lines if mark in line]
    return marked[-1].partition(mark)[2].strip() if marked else ""
