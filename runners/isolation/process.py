"""The parent's side of a running job: its processes, their pipes, limits and end."""

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
"""Signals that a process causes by its own fault; any other signal was sent from outside."""
_HEAD_START_S = 0.3
"""Seconds by which a death is dated back: the errors of other ranks, whose connections to the dead
rank broke, are noticed before it."""
_HELD_S = 1.0
"""Seconds that a pipe may stay open after its process died, held by a process outside its group."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """One piece of work and its limits."""

    function: Work
    """Importable by name: `f(argument, send)`."""
    argument: Any
    """Pickled."""
    name: str = ""
    """For the caller's use."""
    seconds: float | None = None
    """Wall clock from the start of the process."""
    silent_s: float | None = None
    """Seconds without a message after which the work counts as hanging. Work of several parts sends
    a message as each begins, so a part that hangs is stopped before the time of all has passed."""
    memory_bytes: int | None = None
    """Address space beyond what imports have mapped. For the CPU only: CUDA maps far more."""
    threads: int | None = None
    """Threads of torch, OpenMP and the BLAS; None: their defaults."""
    processes: int = 1
    """If more than one, each gets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT."""
    statuses: Mapping[str, Status] = field(default_factory=lambda: dict(STATUSES))
    """What an exception means, by name of its class or a base class."""
    grace_seconds: float = 30.0
    """From SIGTERM to SIGKILL, after a time-out or an interruption."""
    log: Path | None = None
    """File for the child's output and traceback, bounded; None: where the parent's goes."""


class _Rank:
    """One process of a job, and what the parent knows about it; times are monotonic seconds."""

    def __init__(self, job: Job, rank: int, place: DevicePlace, extra: Mapping[str, str]) -> None:
        self.rank = rank
        self.ending: Ending | None = None
        """How its work ended, by its last message; None: it has not sent that."""
        self.ended_at: float | None = None
        self.failed_at: float | None = None
        """When it failed, if it did before the parent stopped the job."""
        self.died_at: float | None = None
        self.noticed = False
        """Whether the last `Child.poll` has seen that it is dead."""
        self.open = True
        """Whether its pipe is open."""
        self.mark = uuid4().hex
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
            raise RuntimeError("the fork server sent no process number")
        self.pid = self.process.pid
        """Also the number of its process group."""

    def receive(self, at_most: int) -> list[object]:
        """Return at most `at_most` messages that have arrived, without waiting."""
        messages: list[object] = []
        while self.open and len(messages) < at_most and self.connection.poll():
            try:
                is_last, content = self.connection.recv()
            except (EOFError, OSError):
                self.open = False
            except Exception as error:  # noqa: BLE001 - whatever unpickling may raise
                self.ending = Ending(
                    Status.crashed, shorten(f"sent an unreadable message: {text_of(error)}")
                )
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
        """Whether the process has ended.

        Exit code 255 is also returned if the fork server died first; then a closed pipe tells.
        """
        code = self.process.exitcode
        return code is not None and (code != 255 or not self.open)

    @property
    def half_dead(self) -> bool:
        """Whether the process has ended, but one that it started still holds its pipe."""
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
        if len(taken) != job.processes:
            raise ValueError(
                f"{job.processes} processes need as many places of processor cores: got "
                f"{len(taken)}"
            )
        self.job, self.taken = job, taken
        self._victims = oom_kills()
        self.ending: Ending | None = None
        self._cause: str | None = None
        """Why the parent has stopped the job; None: it has not."""
        self._kill_at: float | None = None
        """When processes that still run are killed, by the monotonic clock; None: not planned."""
        self._log = None if job.log is None else Log(job.log)
        self._ranks: list[_Rank] = []
        try:
            devices = _devices(taken)
            for rank, extra in enumerate(_meeting(job.processes)):
                self._ranks.append(_Rank(job, rank, taken[rank], {**devices, **extra}))
        except BaseException:
            self.kill()
            raise
        self._begun = self._heard = time.monotonic()

    def waitables(self) -> list[Any]:
        """Return what `multiprocessing.connection.wait` can wait for."""
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
        times = [now + (0.02 if any(rank.half_dead for rank in self._ranks) else 60.0)]
        if any(rank.dead and not rank.noticed for rank in self._ranks):
            times.append(now)  # it died after the last `poll`, and no waitable will tell
        limit = self._deadline() if self._kill_at is None else self._kill_at
        if limit is not None:  # once the job is stopped, its past deadline would cause a busy loop
            times.append(limit)
        if self._log is not None:
            times.append(now + self._log.wait_s)
        if len(self._ranks) > 1 and self._cause is None:
            times.extend(
                rank.failed_at + _PATIENCE_S for rank in self._ranks if rank.failed_at is not None
            )
        return min(times)

    def poll(self) -> list[object]:
        """Return new messages, enforce the limits, and set `ending` once every process is gone."""
        now = time.monotonic()
        if self.ending is not None:
            return []
        messages: list[object] = []
        for rank in self._ranks:
            was_dead = rank.noticed = rank.dead
            # At most 1,000 messages, so that a job that sends many cannot keep us from the clock.
            received = rank.receive(at_most=sys.maxsize if was_dead else 1000)
            messages.extend(received)
            failed = was_dead if rank.ending is None else rank.ending != Ending(Status.ok)
            if failed and self._cause is None:
                rank.failed_at = rank.failed_at or rank.ended_at or now - _HEAD_START_S
            if was_dead and rank.open:
                rank.kill()  # the processes that it left behind, which also closes the pipe
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
        self.ending = Ending(Status.skipped, "killed by the parent", interrupted=True)

    def _deadline(self) -> float | None:
        """Return when the work will have run, or been silent, for too long; None: no limit."""
        limits = (self._begun, self.job.seconds), (self._heard, self.job.silent_s)
        return min((since + limit for since, limit in limits if limit is not None), default=None)

    def _stop(self, cause: str, grace_seconds: float) -> None:
        """Ask every process to stop; those that still run `grace_seconds` later are killed."""
        self._cause = cause
        self._kill_at = time.monotonic() + grace_seconds
        for rank in self._ranks:
            rank.terminate()

    def _enforce(self, now: float) -> None:
        """Stop the job at its limits or after a failure, and kill what is due."""
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
            self._kill_at = now + 1.0

    def _conclude(self) -> Ending:
        """Return how the job ended, once every process has: the first failure decides."""
        if self._cause == "timeout":
            return Ending(Status.timeout, f"took longer than {self.job.seconds:g} s")
        if self._cause is not None and self._cause != "failure":
            # A rank that storage kept from saving its state says why.
            refused = [rank.ending for rank in self._ranks if rank.ending and rank.ending.storage]
            return (refused or [Ending(Status.skipped, self._cause, interrupted=True)])[0]
        wrong = [rank for rank in self._ranks if rank.ending != Ending(Status.ok)]
        if not wrong:
            return Ending(Status.ok)
        # A rank without `failed_at` was stopped by us, or has died just now.
        failed = [rank for rank in wrong if rank.failed_at is not None] or wrong
        first = min(failed, key=lambda rank: rank.failed_at or 0.0)
        ending = first.ending or _judge_death(
            first.process.exitcode,
            self.job,
            self._log,
            starved=oom_kills() > self._victims,
        )
        if len(self._ranks) > 1:
            ending = ending._replace(
                reason=f"rank {first.rank} of {len(self._ranks)}: {ending.reason}"
            )
        return ending


def _devices(taken: Taken) -> dict[str, str]:
    """Return the environment variables that show processes their GPUs.

    Each rank is shown the GPUs of all ranks, and uses the one at LOCAL_RANK, as under torchrun:
    libraries that copy from GPU to GPU need access to both.
    """
    gpus = [place.gpu for place in taken if place.gpu is not None]
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}


def _meeting(processes: int) -> list[dict[str, str]]:
    """Return, for each rank, the environment variables by which the ranks find each other."""
    if processes == 1:
        return [{}]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
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
    """Return how a process ended that sent no last message.

    Args:
        code: its exit code; negative: the signal that killed it.
        job: its job.
        log: its output, whose last line may name the cause.
        starved: whether the kernel killed processes for lack of memory during the job.
    """
    lines = [] if log is None else log.last_words().splitlines()
    detail = f"; last line of {job.log}: {lines[-1]}" if lines else ""
    if (fault := fault_of(RuntimeError(detail))) is not None:
        return Ending(
            Status.skipped,
            legible(f"the process ended{detail}"),
            interrupted=True,
            storage=True,
            may_pass=fault.may_pass,
        )
    if job.memory_bytes is not None and MEMORY_WORDS.search(detail):
        limit = f"limit {job.memory_bytes:,} bytes"
        return Ending(
            Status.out_of_memory,
            shorten(f"a library stopped the process for lack of memory{detail} ({limit})"),
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
            "; the kernel's out-of-memory killer was active at that time (see dmesg): set a "
            "memory limit, or do fewer runs at the same time"
        )
    elif -code not in _FAULTS:
        return Ending(Status.skipped, f"stopped by {name} from outside", interrupted=True)
    return Ending(Status.crashed, legible(f"the process was killed by {name}{detail}"))
