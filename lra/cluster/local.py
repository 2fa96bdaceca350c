"""Workers on this machine, detached from the shell that started them."""

import os
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lra.cluster.engine import ENDED, RUNNING, JobState, StartedJobs, WorkerGroup, check_common
from lra.conf.processors import processor_words, processors
from lra.errors import ConfigError
from lra.runners.storage.atomic import make_folder
from lra.runners.storage.holders import place_mark, start_of, stat_fields

ELSEWHERE = "elsewhere"
"""State of a process that was started on another machine."""
MARK = "LRA_SUBMISSION"
"""Variable of a worker's environment: the mark of the submission that started it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalEngine:
    """Starts one process for each group, which forks the workers, so that they share memory."""

    workers: int | None = None
    wait_s: float = 360.0

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        check_common(self.workers, self.wait_s)

    def check(self, groups: Sequence[WorkerGroup], plan: Path) -> None:
        """Raise ConfigError if this machine has fewer cores than a worker needs."""
        del plan
        cores = processors()
        for group in groups:
            if group.resources.cpus > cores:
                raise ConfigError(
                    f"cluster=local: a run needs {group.resources.cpus} cores, and this machine "
                    f"has {processor_words()}; set hardware.training_threads or hardware.threads "
                    f"to at most {cores}"
                )

    def place(self) -> Mapping[str, str]:
        """Return the name of this machine, and a mark that changes when it restarts."""
        return {"host": socket.gethostname(), "since": place_mark()}

    def submit(
        self, plan: Path, groups: Sequence[WorkerGroup], command: Sequence[str], mark: str
    ) -> list[str]:
        """Start a process for each group of workers, in a separate session; return its ids."""
        ids = []
        for group in groups:
            words = [*command, "--group", group.name, "--workers", str(group.count)]
            stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{group.name}"
            log = make_folder(plan / "logs") / f"start-{stamp}.log"
            files = [  # of standard input, standard output and standard error
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ]
            variables = {**os.environ, MARK: mark}
            pid = os.posix_spawnp(words[0], words, variables, file_actions=files, setsid=True)
            ids.append(job_id(pid))
        return ids

    def states(self, started: Sequence[StartedJobs]) -> Mapping[str, JobState]:
        """Return the state of each process: running, ended, or elsewhere (on another machine)."""
        ids = [job for submission in started for job in submission.ids]
        for submission in started:
            # Without ids, the command was killed before it stored them.
            if not submission.ids and submission.place == self.place():
                ids += _find_marked(submission.mark)
        return {job: JobState(_find_state(job)) for job in ids}

    def output(self, plan: Path, job: str) -> Path | None:
        """Return None: the id of a process does not lead to the file of its output."""
        del plan, job
        return None

    def stop(self, ids: Sequence[str]) -> None:
        """Send SIGTERM to every process that still runs, and to its workers."""
        for job in ids:
            if _find_state(job) == RUNNING:
                _, pid, *_ = job.split(":")
                try:
                    os.killpg(int(pid), signal.SIGTERM)
                except ProcessLookupError:
                    continue
                except PermissionError as error:
                    raise ConfigError(
                        f"{job}: only the user who owns this process can stop it"
                    ) from error


def job_id(pid: int) -> str:
    """Return an id of a process; a later process with the same number has another one."""
    return f"{socket.gethostname()}:{pid}:{start_ticks(pid)}:{place_mark()}"


def start_ticks(pid: int) -> int:
    """Return when a process was started, in ticks of the kernel; 0 if it has ended."""
    start, dead = start_of(pid)
    return 0 if dead else start or 0


def _find_state(job: str) -> str:
    """Return whether the process with an id is running, ended or elsewhere: see `job_id`."""
    host, pid, start, place = job.split(":")
    if place != place_mark():  # this machine before it was restarted, or another one
        return ENDED if host == socket.gethostname() else ELSEWHERE
    if start_ticks(int(pid)) == int(start) != 0:  # the same process, and it has not ended
        return RUNNING
    return RUNNING if _group_lives(int(pid)) else ENDED


def _group_lives(leader: int) -> bool:
    """Return whether workers still run after the process `leader`, which forked them, has ended."""
    if start_ticks(leader):
        return False  # the number belongs to a new process, so the group has ended
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError):
            fields = stat_fields(path)  # state, parent, process group, ...
            if fields[0] not in ("Z", "X") and int(fields[2]) == leader:
                return True
    return False


def _find_marked(mark: str) -> Iterator[str]:
    """Yield the ids of processes that run `lra work` and were started with a mark."""
    variable = f"{MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            pid, command = int(folder.name), (folder / "cmdline").read_bytes().split(b"\0")
            if (
                b"work" in command
                and variable in (folder / "environ").read_bytes().split(b"\0")
                and os.getsid(pid) == pid  # not one of the workers that it forked
            ):
                yield job_id(pid)
