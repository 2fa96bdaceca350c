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
"""Of the environment of workers: the mark of the submission that started them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalEngine:
    """Starts one process, which forks the workers: they share what it has imported."""

    workers: int | None = None
    wait_s: float = 360.0

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        check_common(self.workers, self.wait_s)

    def check(self, groups: Sequence[WorkerGroup], plan: Path) -> None:
        """Raise ConfigError where this machine has less than a worker is to have."""
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
        """Return the name of this machine, and what is another one after each restart of it."""
        return {"host": socket.gethostname(), "since": place_mark()}

    def submit(
        self, plan: Path, groups: Sequence[WorkerGroup], command: Sequence[str], mark: str
    ) -> list[str]:
        """Start a process for each group of workers, in a session of its own."""
        ids = []
        for group in groups:
            words = [*command, "--group", group.name, "--workers", str(group.count)]
            stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{group.name}"
            log = make_folder(plan / "logs") / f"start-{stamp}.log"
            files = [
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ]
            variables = {**os.environ, MARK: mark}
            pid = os.posix_spawnp(words[0], words, variables, file_actions=files, setsid=True)
            ids.append(job_id(pid))
        return ids

    def states(self, started: Sequence[StartedJobs]) -> Mapping[str, JobState]:
        """Return for each process running, ended, or elsewhere: started on another machine."""
        ids = [job for each in started for job in each.ids]
        for each in started:
            if not each.ids and each.place == self.place():
                ids += _marked(each.mark)
        return {job: JobState(_state(job)) for job in ids}

    def output(self, plan: Path, job: str) -> Path | None:
        """Return None: no id names the file of what a process says."""
        del plan, job
        return None

    def stop(self, ids: Sequence[str]) -> None:
        """Send SIGTERM to every process that is still there, with its workers."""
        for job in ids:
            if _state(job) == RUNNING:
                try:
                    os.killpg(int(job.split(":")[1]), signal.SIGTERM)
                except ProcessLookupError:
                    continue
                except PermissionError as error:
                    raise ConfigError(
                        f"{job}: this process belongs to another user, who can stop it"
                    ) from error


def job_id(pid: int) -> str:
    """Return what stands for a process of this machine, and for no later one of its number."""
    return f"{socket.gethostname()}:{pid}:{start_ticks(pid)}:{place_mark()}"


def start_ticks(pid: int) -> int:
    """Return when a process was started, in the kernel's ticks; 0 where it is gone or a zombie."""
    start, dead = start_of(pid)
    return 0 if dead else start or 0


def _state(job: str) -> str:
    host, pid, start, place = job.split(":")
    if place != place_mark():  # this machine before it was restarted, or another one
        return ENDED if host == socket.gethostname() else ELSEWHERE
    if start_ticks(int(pid)) == int(start) != 0:
        return RUNNING
    return RUNNING if _group_lives(int(pid)) else ENDED


def _group_lives(leader: int) -> bool:
    """Tell whether workers outlived the process that forked them, which led their group."""
    if start_ticks(leader):
        return False  # another process has its number: the group is gone
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError):
            fields = stat_fields(path)
            if fields[0] not in ("Z", "X") and int(fields[2]) == leader:
                return True
    return False


def _marked(mark: str) -> Iterator[str]:
    """Yield the jobs that were started with a mark: what leads a session, and runs `lra work`."""
    wanted = f"{MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            pid, words = int(folder.name), (folder / "cmdline").read_bytes().split(b"\0")
            if (
                b"work" in words
                and wanted in (folder / "environ").read_bytes().split(b"\0")
                and os.getsid(pid) == pid
            ):
                yield job_id(pid)
