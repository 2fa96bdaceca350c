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
"""Seconds between two questions to a controller, which serves all users of a cluster."""
MEANINGS = (
    ("Resources", "all nodes are busy"),
    ("Priority", "jobs with a higher priority come first"),
    ("QOS", "your QOS has reached a limit"),
    ("Assoc", "your account has reached a limit"),
    (
        "BeginTime",
        "the job starts within minutes if it was requeued, otherwise at the time set by begin",
    ),
    (
        "DependencyNeverSatisfied",
        "the job depends on a failed job and will never start: remove it with scancel",
    ),
    ("Dependency", "the job waits for another job"),
    ("JobArrayTaskLimit", "the array of the job already runs as many jobs as it may"),
    ("Reservation", "the reservation of the job has not begun, or is over"),
    ("Licenses", "all licences that the job needs are in use"),
    (
        "BadConstraints",
        "no node has what the job requests, so it will never start: remove it with scancel",
    ),
    ("JobHoldMaxRequeue", "SLURM blocks the job after many starts: type scontrol release JOB"),
    ("ReqNodeNotAvail", "the nodes of the job are down or reserved"),
    ("NodeDown", "the nodes of the job are down"),
    ("Partition", "the partition does not accept the job"),
    ("Held", "the job is on hold: type scontrol release JOB"),
    ("held", "the job is on hold: type scontrol release JOB"),
)
"""What SLURM's reasons mean. The first entry whose word is part of the reason counts."""
FAILED = ("failed", "node_fail", "out_of_memory", "boot_fail", "launch_failed", "timeout")
MOST_READ = 20_000
"""Bytes that are read at the beginning and at the end of an output."""
MOST_SAID = 3
_AFTERWARDS = re.compile(
    r"srun: (error: .*(Exited|Terminated|Killed)|Terminating|Job step)|slurmstepd: "
)
"""Lines that SLURM adds to an output after the program has ended."""


@dataclass(slots=True, kw_only=True)
class JobStanding:
    """The jobs of a sweep on one cluster."""

    cluster: str
    states: Counter[str] = field(default_factory=Counter)
    """Jobs by state: queued, running, ended, forgotten, or a word of the cluster."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Queued jobs, by the reason that the cluster gives."""
    note: str = ""
    """Why the state of the jobs is not known here; "": it is known."""
    early: dict[str, list[str]] = field(default_factory=dict)
    """Output files of jobs that ended before their worker began, by their last line."""
    mute: list[str] = field(default_factory=list)
    """Jobs that failed without any output."""

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {name: getattr(self, name) for name in self.__slots__}


def active(notes: Iterable[dict[str, Any]]) -> list[str]:
    """Return the jobs of submissions that run or will run, as far as their clusters answer here."""
    jobs: list[str] = []
    for note in notes:
        with suppress(ConfigError, OSError, subprocess.SubprocessError):
            states = started_by(note).states([jobs_of(note)])
            jobs += [job for job, state in states.items() if state.active]
    return jobs


class JobWatcher:
    """Asks the clusters of a plan's submissions for the states of jobs, every `EVERY_S` seconds."""

    def __init__(self, plan: Path) -> None:
        """Take the folder of a plan; the first `look` asks."""
        self.plan = plan
        self._standings: list[JobStanding] = []
        self._next = 0.0

    def look(self) -> list[JobStanding]:
        """Return the last known states of the jobs, one entry for each cluster and user."""
        if time.monotonic() >= self._next:
            self._standings = [_ask_cluster(self.plan, *place) for place in _by_place(self.plan)]
            # A cluster without an answer makes the user wait, so it is asked less often.
            silent = any(standing.note for standing in self._standings)
            self._next = time.monotonic() + EVERY_S * (4 if silent else 1)
        return self._standings


def job_lines(jobs: Sequence[JobStanding]) -> Iterator[str]:
    """Yield lines about the jobs on each cluster: their states, and jobs that failed early."""
    for standing in jobs:
        if standing.note:
            yield (
                f"the state of the jobs is unknown, because {standing.cluster} was not asked: "
                f"{standing.note}"
            )
            continue
        if not standing.states:  # a submission that was refused, or whose jobs are forgotten
            continue
        # The cluster's own words for failures, such as timeout, have the number 3.
        order = {RUNNING: 0, SUSPENDED: 1, QUEUED: 2, ENDED: 4, FORGOTTEN: 5}
        states = sorted(standing.states.items(), key=lambda item: (order.get(item[0], 3), item[0]))
        parts = []
        for state, count in states:
            if state == FORGOTTEN:
                parts.append(f"{count:,} ended long ago ({standing.cluster} forgot them)")
            elif state == QUEUED and standing.reasons:
                why = "; ".join(_explain(*pair) for pair in standing.reasons.most_common())
                parts.append(f"{count:,} {state} ({why})")
            else:
                parts.append(f"{count:,} {state.replace('_', ' ')}")
        yield f"{standing.cluster}: jobs {', '.join(parts)}"
        for said, files in list(standing.early.items())[:MOST_SAID]:
            more = f" and {len(files) - 1:,} more" if len(files) > 1 else ""
            yield f"a job ended before the worker began: {said} ({files[0]}{more})"
        if standing.mute:
            more = f" and {len(standing.mute) - 1:,} more" if len(standing.mute) > 1 else ""
            yield (
                f"job {standing.mute[0]}{more} failed without output; perhaps its node cannot read "
                f"the results folder: type scontrol show job {standing.mute[0]}"
            )


def _explain(reason: str, count: int) -> str:
    """Return the number of jobs that wait for a reason, with the meaning of the reason."""
    meaning = next((text for part, text in MEANINGS if part in reason), "")
    return f"{count:,} {reason}: {meaning}" if meaning else f"{count:,} {reason}"


def _by_place(plan: Path) -> Iterator[tuple[str, dict[str, Any], list[StartedJobs]]]:
    """Yield, for each cluster and user: its name, the newest options, and all submissions."""
    by_place: dict[tuple[str, str], tuple[dict[str, Any], list[StartedJobs]]] = {}
    for submission in submissions(plan):
        if (name := submission["cluster"]) != LOCAL:
            key = (name, str(sorted(submission["place"].items())))
            _, before = by_place.get(key, ({}, []))
            by_place[key] = (submission["options"], [*before, jobs_of(submission)])
    for (name, _), (options, started) in by_place.items():
        yield name, options, started


def _ask_cluster(
    plan: Path, cluster: str, options: dict[str, Any], started: list[StartedJobs]
) -> JobStanding:
    """Ask a cluster for the states of jobs, and read the outputs of those that have ended."""
    standing = JobStanding(cluster=cluster)
    try:
        engine = started_by({"cluster": cluster, "options": options})
        states = engine.states(started)
    except (ConfigError, OSError, subprocess.SubprocessError) as error:
        standing.note = str(error).removeprefix(f"cluster={cluster}: ")
        return standing
    for state in states.values():
        standing.states[state.state] += 1
        if state.state == QUEUED and state.reason:
            standing.reasons[state.reason] += 1
    for job in (job for job, state in states.items() if not state.active):
        _read_output(standing, engine, plan, job, failed=states[job].state in FAILED)
    return standing


def _read_output(
    standing: JobStanding, engine: Engine, plan: Path, job: str, *, failed: bool
) -> None:
    """Add an ended job to `standing` if its output shows that its worker never began."""
    path = engine.output(plan, job)
    if path is None:
        return
    try:
        with os.fdopen(open_file(path), "rb") as file:
            begin = file.read(MOST_READ)
            file.seek(max(0, file.seek(0, 2) - MOST_READ))  # `seek(0, 2)` returns the size
            end = file.read()
    except FileNotFoundError:
        begin = end = b""
    except OSError:  # the file cannot be read now
        return
    if f" {STARTS}".encode() in begin:  # the worker began, and has a log of its own
        return
    lines = [line for line in end.decode(errors="replace").splitlines() if line.strip()]
    own_lines = [line for line in lines if not _AFTERWARDS.match(line)] or lines
    if own_lines:
        standing.early.setdefault(legible(own_lines[-1].strip()), []).append(str(path))
    elif failed:
        standing.mute.append(job)
