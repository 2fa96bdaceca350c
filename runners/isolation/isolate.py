"""Work in separate processes: whatever happens to a child, the parent gets an `Ending`.

A fork server, which has imported torch once, starts children in milliseconds. All children inherit
the random state of the server, so the work must set its seed. The server never uses a GPU; a CUDA
context belongs to a child and ends with it.

Only the parent handles signals. It passes SIGTERM, SIGINT and SIGUSR1 to every child once, as
SIGTERM. Work that saves a checkpoint handles the signal and returns or raises
`records.Interrupted` within the grace period. A second Ctrl-C kills all children at once; other
signals may arrive twice. If the parent is killed, its children end, and so do all processes that
they started (`lra.runners.isolation.descendants`). This package knows no configurations, models,
tasks or rows.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing import forkserver
from multiprocessing.connection import wait
from pathlib import Path
from types import FrameType
from typing import Any

from lra.runners.isolation import forked_server, temporary
from lra.runners.isolation.child import STATUSES, Ending, Send, Work
from lra.runners.isolation.places import DevicePlace, Places, Taken, seats
from lra.runners.isolation.process import CONTEXT, Child, Job
from lra.runners.records import Status
from lra.tasks.data.signals import STOPS, left_to_parent

__all__ = [
    "STATUSES",
    "Child",
    "Ending",
    "Job",
    "Send",
    "Work",
    "pool",
    "prepare",
    "run",
    "start",
    "start_server",
]


class _NextServer:
    """How the fork server will be started."""

    def __init__(self) -> None:
        self.modules = ["torch"]
        self.forked = False


_next = _NextServer()
ATTEMPTS = 5


class LostServer(RuntimeError):
    """The fork server died several times while a job was started."""


def prepare(*modules: str, fork: bool = False) -> None:
    """Let the fork server import `modules` in addition to torch; call this before the first child.

    The modules must not start threads or use a GPU. A missing module is ignored here.

    Args:
        modules: dotted names.
        fork: whether the server may be a fork of this process, which has its imports already. If it
            dies, a new Python replaces it.
    """
    _next.modules.extend(module for module in modules if module not in _next.modules)
    _next.forked = fork


def start_server() -> None:
    """Start the fork server unless it runs; its imports do not delay this process."""
    CONTEXT.set_forkserver_preload(_next.modules)
    server: Any = forkserver
    _leave_unreachable(server._forkserver)
    folder = temporary.process_folder()
    try:
        forking = forked_server.start_by_fork() if _next.forked else nullcontext()
        with _same_import_path(), left_to_parent(), forking:
            forkserver.ensure_running()
    except OSError as error:
        raise temporary.unwritable(folder, error) from error
    _next.forked = False


def _leave_unreachable(server: Any) -> None:
    """Forget a fork server if its socket was removed, so that a new one is started.

    The old one keeps its children and ends together with this process.
    """
    address = server._forkserver_address
    if address is not None and not Path(address).exists():
        server._forkserver_address = server._forkserver_alive_fd = server._forkserver_pid = None


@contextmanager
def _same_import_path() -> Iterator[None]:
    """Give a Python that is started in the `with` block the import path of this process.

    The fork server is a `python -c`, which otherwise looks into the current folder first. A file
    there may have the name of a package that the server imports.
    """
    path = [str(Path(entry).absolute()) for entry in sys.path if os.pathsep not in entry]
    changed = {"PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1"}
    old = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in old.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def start(job: Job, taken: Taken | None = None) -> Child:
    """Start a job and return its `Child` at once; the first job waits until torch is imported.

    Args:
        job: the job.
        taken: the places of its processes; None: the operating system decides.
    """
    taken = seats(job.processes) if taken is None else taken
    for attempt in range(ATTEMPTS):
        time.sleep(0.1 * attempt)  # because a server that is dying may still answer
        start_server()
        try:
            return Child(job, taken)
        except (EOFError, ConnectionError, FileNotFoundError) as error:
            lost = error
    raise LostServer(
        f"the process that starts the runs died {ATTEMPTS} times at its start: look for the "
        "cause (`dmesg` reports a lack of memory), then rerun the same command"
    ) from lost


def run(
    function: Work,
    argument: Any,
    *,
    on_message: Callable[[object], None],
    seconds: float | None = None,
    memory_bytes: int | None = None,
    threads: int | None = None,
    processes: int = 1,
    statuses: Mapping[str, Status] = STATUSES,
    grace_seconds: float = 30.0,
    log: Path | None = None,
) -> Ending:
    """Run one job, wait for it, and return its ending; the arguments are those of `Job`.

    `on_message` gets each message, also those of a job that fails later.
    """
    endings: list[Ending] = []
    job = Job(
        function=function,
        argument=argument,
        seconds=seconds,
        memory_bytes=memory_bytes,
        threads=threads,
        processes=processes,
        statuses=statuses,
        grace_seconds=grace_seconds,
        log=log,
    )
    pool(
        {processes: [job]},
        places=Places(seats(processes)),
        on_message=lambda _, message: on_message(message),
        on_end=lambda _, ending: endings.append(ending),
    )
    # There is no ending if a signal came before the job started.
    return endings[0] if endings else Ending(Status.skipped, "interrupted", interrupted=True)


def pool(
    jobs: Iterable[Job] | Mapping[int, Iterable[Job]],
    *,
    places: Places | None = None,
    on_start: Callable[[Job, Taken], None] = lambda *_: None,
    on_message: Callable[[Job, object], None],
    on_end: Callable[[Job, Ending], None],
    stop: Callable[[], str | None] = lambda: None,
) -> signal.Signals | None:
    """Run jobs, several at the same time; return the signal that ended them early, or None.

    Args:
        jobs: jobs of one process, or iterators of jobs by their number of processes. A job is taken
            when there is a place for it, so an iterator may claim work late.
        places: the places where jobs run; None: one job at a time runs anywhere.
        on_start: called with a job and its places before it starts.
        on_message: called with a job and each message that it sends, in order.
        on_end: called with each job that was started and its ending, after its last message.
        stop: called again and again. When it returns a cause, running jobs are asked to save their
            state and stop, and no further job starts.

    An exception in a callback or iterator kills the running jobs and is raised again.
    """
    places = places or Places([DevicePlace()])
    jobs_by_width = jobs if isinstance(jobs, Mapping) else {1: jobs}
    waiting = {width: iter(some_jobs) for width, some_jobs in jobs_by_width.items()}
    for width in waiting:
        places.check(width)
    running: list[Child] = []
    with _Signals() as signals:
        try:
            while True:
                cause = stop() if signals.first is None else signals.first.name
                _interrupt(running, cause)
                while cause is None and (width := places.next(waiting)) is not None:
                    job = next(waiting[width], None)
                    if job is None:  # no job of this width is left
                        del waiting[width]
                        continue
                    taken = places.take(width)
                    on_start(job, taken)
                    running.append(start(job, taken))
                if not running:
                    return signals.first
                _wait_for_event(running, signals)
                for child in list(running):
                    if signals.impatient:
                        child.kill()
                    for message in child.poll():
                        on_message(child.job, message)
                    if child.ending is not None:
                        running.remove(child)
                        places.give_back(child.taken)
                        on_end(child.job, child.ending)
        finally:
            for child in running:
                child.kill()


def _interrupt(running: list[Child], cause: str | None) -> None:
    if cause is not None:
        for child in running:
            child.interrupt(cause)


def _wait_for_event(running: list[Child], signals: "_Signals") -> None:
    """Wait until a child sends a message or ends, a signal comes, or a child must be polled."""
    # Before `due`, which is 0 s away for a child that dies after `waitables` left it out.
    waitables = [signals.reader, *(w for child in running for w in child.waitables())]
    timeout = min(child.due() for child in running) - time.monotonic()
    wait(waitables, max(0.0, timeout))
    signals.drain()


class _Signals:
    """Records signals that ask to stop, inside its `with` block; only in the main thread.

    Each signal also writes into a pipe, whose end `reader` wakes a parent that waits.
    """

    def __init__(self) -> None:
        self.first: signal.Signals | None = None
        self._interrupts = 0  # how often Ctrl-C was pressed
        self.reader, self._writer = os.pipe()
        os.set_blocking(self.reader, False)
        os.set_blocking(self._writer, False)
        self._before: dict[signal.Signals, Any] = {}  # the handlers outside the block

    def __enter__(self) -> "_Signals":
        if threading.current_thread() is threading.main_thread():
            for number in STOPS:
                self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.first = self.first or signal.Signals(number)
        self._interrupts += number == signal.SIGINT
        with suppress(BlockingIOError):
            os.write(self._writer, b"!")

    @property
    def impatient(self) -> bool:
        """Return whether Ctrl-C was pressed twice."""
        return self._interrupts > 1

    def drain(self) -> None:
        """Empty the pipe by which a signal wakes the waiting parent."""
        with suppress(BlockingIOError):
            os.read(self.reader, 4096)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self.reader)
        os.close(self._writer)
