"""What a cluster says of the jobs that were submitted for a sweep."""

import os
import re
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lra.cluster.engine import (
    ENDED,
    FORGOTTEN,
    LOCAL,
    QUEUED,
    RUNNING,
    STARTS,
    SUSPENDED,
    Engine,
    StartedJobs,
    started_by,
)
from lra.cluster.submissions import jobs_of, submissions
from lra.conf.plain_files import open_file
from lra.errors import ConfigError
from lra.runners.records import legible

EVERY_S = 30.0
"""Between two questions: a controller serves everybody, and is not to be asked all the time."""
MEANINGS = (
    ("Resources", "all nodes are busy"),
    ("Priority", "jobs with a higher priority come first"),
    ("QOS", "a limit of the QOS"),
    ("Assoc", "a limit of the account"),
    (
        "BeginTime",
        "it starts later: within minutes if it was requeued, otherwise at the time set by begin",
    ),
    (
        "DependencyNeverSatisfied",
        "it depends on a job that failed, so it will never start: remove it with scancel",
    ),
    ("Dependency", "it waits for another job"),
    ("JobArrayTaskLimit", "a limit of its array"),
    ("Reservation", "its reservation has not begun, or is over"),
    ("Licenses", "all licences are in use"),
    (
        "BadConstraints",
        "no node has the resources that it requests, so it will never start: "
        "remove it with scancel",
    ),
    ("JobHoldMaxRequeue", "blocked after too many starts: release it with scontrol release"),
    ("ReqNodeNotAvail", "its nodes are down or reserved"),
    ("NodeDown", "its nodes are down"),
    ("Partition", "the partition does not accept it"),
    ("Held", "on hold: release it with scontrol release"),
    ("held", "on hold: release it with scontrol release"),
)
"""Of SLURM's reasons, by a part of their names; the first that fits."""
FAILED = ("failed", "node_fail", "out_of_memory", "boot_fail", "launch_failed", "timeout")
MOST_READ = 20_000
"""Bytes of each end of an output."""
MOST_SAID = 3
_AFTERWARDS = re.compile(
    r"srun: (error: .*(Exited|Terminated|Killed)|Terminating|Job step)|slurmstepd: "
)
"""What SLURM adds once a program has ended."""


@dataclass(slots=True, kw_only=True)
class JobStanding:
    """The jobs of a sweep on one cluster."""

    cluster: str
    states: Counter[str] = field(default_factory=Counter)
    """Jobs by state: queued, running, ended, forgotten, or a word of the cluster."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Of those that are queued, by the reason that the cluster gives."""
    note: str = ""
    """Why nothing is known of them here; "" where something is."""
    early: dict[str, list[str]] = field(default_factory=dict)
    """Outputs of jobs that ended before their worker began, by the last line."""
    mute: list[str] = field(default_factory=list)
    """Jobs that failed without any output."""

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {name: getattr(self, name) for name in self.__slots__}


def active(notes: Iterable[dict[str, Any]]) -> list[str]:
    """Return the jobs of submissions that run or will, as far as their clusters tell here."""
    jobs: list[str] = []
    for note in notes:
        with suppress(ConfigError, OSError, subprocess.SubprocessError):
            states = started_by(note).states([jobs_of(note)])
            jobs += [job for job, seen in states.items() if seen.active]
    return jobs


class JobWatcher:
    """Asks the engines of a plan's submissions now and then; processes of `local` tell nothing."""

    def __init__(self, plan: Path) -> None:
        self.plan = plan
        self._standings: list[JobStanding] = []
        self._next = 0.0

    def look(self) -> list[JobStanding]:
        """Return what was last heard of the jobs, of each cluster."""
        if time.monotonic() >= self._next:
            self._standings = [_asked(self.plan, *place) for place in _by_place(self.plan)]
            # One that gives no answer has already cost its caller a wait.
            silent = any(standing.note for standing in self._standings)
            self._next = time.monotonic() + EVERY_S * (4 if silent else 1)
        return self._standings


def job_lines(jobs: Sequence[JobStanding]) -> Iterator[str]:
    """Yield a line for each cluster."""
    for standing in jobs:
        if standing.note:
            yield f"{standing.cluster} was not asked: {standing.note}"
            continue
        if not standing.states:  # a submission that was refused, or whose jobs are forgotten
            continue
        first = {RUNNING: 0, SUSPENDED: 1, QUEUED: 2, ENDED: 4, FORGOTTEN: 5}
        states = sorted(standing.states.items(), key=lambda item: (first.get(item[0], 3), item[0]))
        parts = []
        for state, count in states:
            if state == FORGOTTEN:
                parts.append(f"{count:,} over, and no longer known to {standing.cluster}")
            elif state == QUEUED and standing.reasons:
                why = "; ".join(_explained(*pair) for pair in standing.reasons.most_common())
                parts.append(f"{count:,} {state} ({why})")
            else:
                parts.append(f"{count:,} {state.replace('_', ' ')}")
        yield f"{standing.cluster}: jobs {', '.join(parts)}"
        for said, files in list(standing.early.items())[:MOST_SAID]:
            more = f" and {len(files) - 1:,} more" if len(files) > 1 else ""
            yield f"ended before the worker began: {said} ({files[0]}{more})"
        if standing.mute:
            more = f" and {len(standing.mute) - 1:,} more" if len(standing.mute) > 1 else ""
            yield (
                f"failed without output: job {standing.mute[0]}{more}; its node may lack the "
                f"results folder: scontrol show job {standing.mute[0]}"
            )


def _explained(reason: str, count: int) -> str:
    meaning = next((words for part, words in MEANINGS if part in reason), "")
    return f"{count:,} {reason}: {meaning}" if meaning else f"{count:,} {reason}"


def _by_place(plan: Path) -> Iterator[tuple[str, dict[str, Any], list[StartedJobs]]]:
    """Yield name, options of the last, and all submissions, of each cluster and user."""
    by_place: dict[tuple[str, str], tuple[dict[str, Any], list[StartedJobs]]] = {}
    for submission in submissions(plan):
        if (name := submission["cluster"]) != LOCAL:
            key = (name, str(sorted(submission["place"].items())))
            before = by_place.get(key, ({}, []))[1]
            by_place[key] = (submission["options"], [*before, jobs_of(submission)])
    for (name, _), (options, all_of_them) in by_place.items():
        yield name, options, all_of_them


def _asked(
    plan: Path, cluster: str, options: dict[str, Any], all_of_them: list[StartedJobs]
) -> JobStanding:
    standing = JobStanding(cluster=cluster)
    try:
        engine = started_by({"cluster": cluster, "options": options})
        states = engine.states(all_of_them)
    except (ConfigError, OSError, subprocess.SubprocessError) as error:
        standing.note = str(error).removeprefix(f"cluster={cluster}: ")
        return standing
    for state in states.values():
        standing.states[state.state] += 1
        if state.state == QUEUED and state.reason:
            standing.reasons[state.reason] += 1
    for job in (job for job, state in states.items() if not state.active):
        _look(standing, engine, plan, job, failed=states[job].state in FAILED)
    return standing


def _look(standing: JobStanding, engine: Engine, plan: Path, job: str, *, failed: bool) -> None:
    """Note the last word of a job that has ended before its worker began."""
    path = engine.output(plan, job)
    if path is None:
        return
    try:
        with os.fdopen(open_file(path), "rb") as file:
            begin = file.read(MOST_READ)
            file.seek(max(0, file.seek(0, 2) - MOST_READ))
            end = file.read()
    except FileNotFoundError:
        begin = end = b""
    except OSError:  # not now
        return
    if f" {STARTS}".encode() in begin:
        return
    lines = [line for line in end.decode(errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if not _AFTERWARDS.match(line)] or lines
    if telling:
        standing.early.setdefault(legible(telling[-1].strip()), []).append(str(path))
    elif failed:
        standing.mute.append(job)
