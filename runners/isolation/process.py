"""The parent's view of a running job: its processes, their pipes, their limits and their end."""

import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any
from uuid import uuid4

from lra.conf.system_errors import MEMORY_WORDS
from lra.runners.isolation import descendants
from lra.runners.isolation.child import STATUSES, Ending, ProcessSettings, Work, enter, shorten
from lra.runners.isolation.log import Log
from lra.runners.isolation.places import DevicePlace, Taken
from lra.runners.records import Status, legible, text_of
from lra.runners.storage.atomic import fault_of
from lra.tasks.data.caller import caller_left_out

CONTEXT = multiprocessing.get_context("forkserver")
_LINGER_S = 10.0
"""Seconds that a child may take to exit after its last message."""
_PATIENCE_S = 0.5
"""Seconds to wait after a rank failed, because another one that failed first may be the cause."""
_FAULTS = frozenset(
    {
        signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGABRT, signal.SIGILL, signal.SIGTRAP,
        signal.SIGSYS, signal.SIGPIPE, signal.SIGXCPU, signal.SIGXFSZ,
    }
)  # fmt: skip
"""Signals that faults of a process cause; any other signal was sent from outside."""
_HEAD_START_S = 0.3
"""A death is dated back by so many seconds, because the parent notices it after the errors of other
ranks, which lost their connection to the dead rank."""
_HELD_S = 1.0
"""Seconds that a pipe may stay open after its process died, because another process has it open."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """One piece of work and its limits."""

    function: Work
    """The function `f(argument, send)`; a child must be able to import it by its name."""
    argument: Any
    """Its argument, which is pickled."""
    name: str = ""
    """A name for the caller."""
    seconds: float | None = None
    """The job is stopped after so many seconds since its process started; None: no limit."""
    silent_s: float | None = None
    """The job is stopped after so many seconds without a message; None: no limit. Work with several
    parts sends a message at the start of each, so a part that hangs is stopped early."""
    memory_bytes: int | None = None
    """Limit of the address space beyond that of imports; for the CPU only (CUDA maps far more)."""
    threads: int | None = None
    """Threads of torch, OpenMP and the BLAS; None: their defaults."""
    processes: int = 1
    """If more than one, each gets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT."""
    statuses: Mapping[str, Status] = field(default_factory=lambda: dict(STATUSES))
    """The status that an exception gives, by the name of its class or a base class."""
    grace_seconds: float = 30.0
    """Seconds from SIGTERM to SIGKILL, after a time-out or an interruption."""
    log: Path | None = None
    """File of limited size for output and traceback of the child; None: the parent's output."""


class _Rank:
    """One process of a job, as the parent knows it; times are monotonic seconds."""

    def __init__(self, job: Job, rank: int, place: DevicePlace, extra: Mapping[str, str]) -> None:
        """Start the process; `extra` are environment variables in addition to the parent's."""
        self.rank = rank
        self.ending: Ending | None = None
        """How the work ended, as the last message said; None: no last message came."""
        self.ended_at: float | None = None
        self.failed_at: float | None = None
        """When it failed, if it failed before the parent stopped the job."""
        self.died_at: float | None = None
        self.noticed = False
        """Whether the last `Child.poll` noticed that the process is dead."""
        self.open = True
        """Whether the pipe is open."""
        self.mark = uuid4().hex  # by which all processes that this one starts are found
        reader, writer = CONTEXT.Pipe(duplex=False)
        setting = ProcessSettings(
            environment={**os.environ, **extra, descendants.MARK: self.mark},
            memory_bytes=job.memory_bytes,
            threads=job.threads,
            cores=place.cores,
            statuses=dict(job.statuses),
            log=job.log,
            speaks=rank == 0,
        )
        payload = bytes(ForkingPickler.dumps((job.function, job.argument)))
        self.connection = reader
        self.process = CONTEXT.Process(target=enter, args=(writer, setting, payload))
        try:
            with caller_left_out(job.function):
                self.process.start()
        except BaseException:
            reader.close()
            raise
        finally:
            writer.close()
        if self.process.pid is None:
            raise RuntimeError("a child process was started, but its process number is unknown")
        self.pid = self.process.pid
        """The process number, and also the number of the process group."""

    def receive(self, at_most: int) -> list[object]:
        """Return at most `at_most` messages that have arrived, without waiting."""
        messages: list[object] = []
        while self.open and len(messages) < at_most and self.connection.poll():
            try:
                is_last, content = self.connection.recv()
            except (EOFError, OSError):
                self.open = False
            except Exception as error:  # noqa: BLE001 - unpickling may raise any error
                reason = f"the process sent a message that lra cannot read: {text_of(error)}"
                self.ending = Ending(Status.crashed, shorten(reason))
                self.ended_at = time.monotonic()
                self.kill()
            else:
                if is_last:
                    self.ending, self.ended_at = content
                else:
                    messages.append(content)
        return messages

    @property
    def dead(self) -> bool:
        """Return whether the process has ended.

        If the fork server died first, the exit code is always 255; then a closed pipe decides.
        """
        code = self.process.exitcode
        return code is not None and (code != 255 or not self.open)

    @property
    def half_dead(self) -> bool:
        """Return whether the process has ended, but one that it started has its pipe open."""
        return self.open and self.dead

    def terminate(self) -> None:
        """Ask the process to stop (SIGTERM); it ends the processes that it started."""
        if not self.dead:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process and all that it started: see `lra.runners.isolation.descendants`."""
        if not self.dead:
            descendants.kill_found(lambda: descendants.processes_below(self.pid))
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            if not self.dead:  # not yet the leader of a process group
                with suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
        descendants.kill_found(lambda: descendants.marked_processes(self.mark))
        if self.half_dead:
            pipe = os.fstat(self.connection.fileno()).st_ino
            descendants.kill_found(lambda: descendants.holders(pipe))

    def close(self) -> None:
        """Wait for the process, and free it and its pipe."""
        self.connection.close()
        self.process.join()
        self.process.close()


class Child:
    """A running job: call `poll` until `ending` is set."""

    def __init__(self, job: Job, taken: Taken) -> None:
        """Start all processes of a job, each at one of the places `taken`."""
        if len(taken) != job.processes:
            raise ValueError(
                f"a job of {job.processes} processes needs {job.processes} places, but got "
                f"{len(taken)}"
            )
        self.job, self.taken = job, taken
        self._victims = oom_kills()  # before the job; more of them later may explain a death
        self.ending: Ending | None = None
        self._cause: str | None = None
        """Why the parent has stopped the job; None: it has not stopped it."""
        self._kill_at: float | None = None
        """Monotonic time at which processes that still run are killed; None: not planned."""
        self._log = None if job.log is None else Log(job.log)
        self._ranks: list[_Rank] = []
        try:
            devices = _gpu_variables(taken)
            for rank, extra in enumerate(_rank_variables(job.processes)):
                self._ranks.append(_Rank(job, rank, taken[rank], {**devices, **extra}))
        except BaseException:
            self.kill()
            raise
        self._begun = self._heard = time.monotonic()  # of the start, and of the last message

    def waitables(self) -> list[Any]:
        """Return the objects for which `multiprocessing.connection.wait` can wait."""
        sources: list[Any] = []
        for rank in self._ranks:
            if rank.open:
                sources.append(rank.connection)
            if rank.process.exitcode is None:
                sources.append(rank.process.sentinel)
        return sources

    def due(self) -> float:
        """Return the monotonic time at which `poll` must be called at the latest."""
        now = time.monotonic()
        # A pipe that another process keeps open never becomes ready, so it is polled often.
        times = [now + (0.02 if any(rank.half_dead for rank in self._ranks) else 60.0)]
        if any(rank.dead and not rank.noticed for rank in self._ranks):
            times.append(now)  # it died after the last `poll`, so no waitable becomes ready
        limit = self._deadline() if self._kill_at is None else self._kill_at
        if limit is not None:  # not the past deadline of a stopped job, which would loop
            times.append(limit)
        if self._log is not None:
            times.append(now + self._log.wait_s)
        if len(self._ranks) > 1 and self._cause is None:
            times.extend(
                rank.failed_at + _PATIENCE_S for rank in self._ranks if rank.failed_at is not None
            )
        return min(times)

    def poll(self) -> list[object]:
        """Return new messages, enforce limits, and set `ending` when all processes have ended."""
        now = time.monotonic()
        if self.ending is not None:
            return []
        messages: list[object] = []
        for rank in self._ranks:
            was_dead = rank.noticed = rank.dead
            # At most 1,000 messages, so that a job with many does not delay the check of limits.
            received = rank.receive(at_most=sys.maxsize if was_dead else 1000)
            messages.extend(received)
            # A process that died without a last message has failed.
            failed = was_dead if rank.ending is None else rank.ending != Ending(Status.ok)
            if failed and self._cause is None:
                rank.failed_at = rank.failed_at or rank.ended_at or now - _HEAD_START_S
            if was_dead and rank.open:
                rank.kill()  # kills processes that it started, which closes the pipe
                rank.died_at = rank.died_at or now
                rank.open = now < rank.died_at + _HELD_S
        self._heard = now if messages else self._heard
        self._enforce(now)
        if self._log is not None:
            self._log.shorten()
        if all(rank.dead and not rank.open for rank in self._ranks):
            self.ending = self._conclude()
            for rank in self._ranks:
                rank.kill()
                rank.close()
            if self._log is not None:
                self._log.finish()
        return messages

    def interrupt(self, name: str) -> None:
        """Ask the job to save itself and stop; it is killed after the grace period."""
        if self._cause is None and not all(rank.ending for rank in self._ranks):
            self._stop(f"interrupted by {name}", self.job.grace_seconds)

    def kill(self) -> None:
        """Kill every process, wait for it, and free it."""
        if self.ending is not None:
            return
        for rank in self._ranks:
            rank.kill()
        for rank in self._ranks:
            rank.close()
        self.ending = Ending(Status.skipped, "lra killed the run", interrupted=True)

    def _deadline(self) -> float | None:
        """Return the time at which the job exceeds its time limit or silence limit, or None."""
        limits = (self._begun, self.job.seconds), (self._heard, self.job.silent_s)
        return min((since + limit for since, limit in limits if limit is not None), default=None)

    def _stop(self, cause: str, grace_seconds: float) -> None:
        """Ask every process to stop; those that still run `grace_seconds` later are killed."""
        self._cause = cause
        self._kill_at = time.monotonic() + grace_seconds
        for rank in self._ranks:
            rank.terminate()

    def _enforce(self, now: float) -> None:
        """Stop the job at its limits or after a failure, and kill processes when it is time."""
        ended = all(rank.ending for rank in self._ranks)
        if self._cause is None and not ended:
            failures = [rank.failed_at for rank in self._ranks if rank.failed_at is not None]
            deadline = self._deadline()
            if deadline is not None and now >= deadline:
                self._stop("timeout", self.job.grace_seconds)
            elif len(self._ranks) > 1 and failures and now >= min(failures) + _PATIENCE_S:
                self._stop("failure", _PATIENCE_S)
        if ended and self._kill_at is None:
            self._kill_at = now + _LINGER_S
        if self._kill_at is not None and now >= self._kill_at:
            for rank in self._ranks:
                if not rank.dead:
                    rank.kill()
            self._kill_at = now + 1.0  # kills again those that are not dead by then

    def _conclude(self) -> Ending:
        """Return how the job ended, after all processes have ended; the first failure decides."""
        if self._cause == "timeout":
            return Ending(Status.timeout, f"the run took longer than {self.job.seconds:g} s")
        if self._cause is not None and self._cause != "failure":
            # If a rank could not save its state because of storage, its reason is reported.
            refused = [rank.ending for rank in self._ranks if rank.ending and rank.ending.storage]
            return (refused or [Ending(Status.skipped, self._cause, interrupted=True)])[0]
        unsuccessful = [rank for rank in self._ranks if rank.ending != Ending(Status.ok)]
        if not unsuccessful:
            return Ending(Status.ok)
        # The parent stopped a rank without `failed_at`, or it died just now.
        failed = [rank for rank in unsuccessful if rank.failed_at is not None] or unsuccessful
        first = min(failed, key=lambda rank: rank.failed_at or 0.0)
        ending = first.ending or _judge_death(
            first.process.exitcode,
            self.job,
            self._log,
            starved=oom_kills() > self._victims,
        )
        if len(self._ranks) > 1:
            ending = ending._replace(
                reason=f"process {first.rank} of {len(self._ranks)}: {ending.reason}"
            )
        return ending


def _gpu_variables(taken: Taken) -> dict[str, str]:
    """Return the environment variables that limit processes to their GPUs.

    Each rank can access the GPUs of all ranks, and uses number LOCAL_RANK, as with torchrun,
    because libraries that copy from GPU to GPU need access to both.
    """
    gpus = [place.gpu for place in taken if place.gpu is not None]
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}


def _rank_variables(processes: int) -> list[dict[str, str]]:
    """Return, for each rank, the environment variables by which the ranks find each other."""
    if processes == 1:
        return [{}]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))  # 0: the system chooses a free port
        port = str(probe.getsockname()[1])
    return [
        {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(processes),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        for rank in range(processes)
    ]


def oom_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory; 0 if unknown."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0


def _judge_death(code: int | None, job: Job, log: Log | None, *, starved: bool) -> Ending:
    """Return the ending of a process that sent no last message.

    Args:
        code: exit code of the process; if negative, the number of the signal that killed it.
        job: the job of the process.
        log: output of the process; the last line may name the cause.
        starved: whether the kernel killed processes for lack of memory during the job.
    """
    lines = [] if log is None else log.last_words().splitlines()
    detail = f"; the last line of {job.log} is: {lines[-1]}" if lines else ""
    # If a library aborts, Python writes its stacks below the cause.
    starving = [line for line in lines if MEMORY_WORDS.search(line)]
    if (fault := fault_of(RuntimeError(detail))) is not None:  # the line names a storage error
        return Ending(
            Status.skipped,
            legible(f"the process ended{detail}"),
            interrupted=True,
            storage=True,
            may_pass=fault.may_pass,
        )
    if job.memory_bytes is not None and starving:
        limit = f"with a limit of {job.memory_bytes:,} bytes"
        words = f"; the last line about memory in {job.log} is: {starving[-1]}"
        return Ending(
            Status.out_of_memory,
            shorten(f"a library ended the process for lack of memory, {limit}{words}"),
        )
    if code is None or code >= 0:
        return Ending(
            Status.crashed,
            legible(f"the process ended with exit code {code} before the run was finished{detail}"),
        )
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if name == "SIGKILL" and starved:
        detail = (
            "; the kernel killed processes for lack of memory at that time (see dmesg): set a "
            "memory limit, or start fewer runs at the same time"
        )
    elif -code not in _FAULTS:
        reason = f"another program stopped the process by {name}"
        return Ending(Status.skipped, reason, interrupted=True)
    return Ending(Status.crashed, legible(f"the process was killed by {name}{detail}"))
