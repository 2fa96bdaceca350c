"""Work in separate processes: whatever happens to a child, the parent gets an `Ending`.

Children come from a fork server that has imported torch once, so that one costs milliseconds. They
seed nothing: they inherit the server's random state, all the same, so the work seeds itself.
The server never touches a GPU; a CUDA context belongs to a child and dies with it.

The parent alone answers signals. SIGTERM, SIGINT and SIGUSR1 are passed to every child once, as
SIGTERM; work that wants to save a checkpoint handles it, returns or raises `records.Interrupted`,
and has the grace period to do so. A second Ctrl-C kills at once; other signals may come twice, to a
group and once more from whoever passes them on. A parent that is killed takes its children
with it, and a child all that it started (`lra.runners.isolation.descendants`). Knows no
configuration, and nothing of models, tasks or rows.
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
    """What the fork server is to be, once it is started."""

    def __init__(self) -> None:
        self.modules = ["torch"]
        self.forked = False


_next = _NextServer()
ATTEMPTS = 5


class LostServer(RuntimeError):
    """The fork server died again and again while a job was started."""


def prepare(*modules: str, fork: bool = False) -> None:
    """Have the fork server import `modules` besides torch; before the first child only.

    They must not start threads or touch a GPU. One that is missing is left to the child.

    Args:
        modules: dotted names.
        fork: whether the server may be a fork of this process, which shares what that has imported.
            One that dies is replaced by a new Python.
    """
    _next.modules.extend(module for module in modules if module not in _next.modules)
    _next.forked = fork


def start_server() -> None:
    """Start the fork server, which imports while this process goes on; harmless where it runs."""
    CONTEXT.set_forkserver_preload(_next.modules)
    server: Any = forkserver
    _leave_unreachable(server._forkserver)
    folder = temporary.process_folder()
    try:
        how = forked_server.start_by_fork() if _next.forked else nullcontext()
        with _same_import_path(), left_to_parent(), how:
            forkserver.ensure_running()
    except OSError as error:
        raise temporary.unwritable(folder, error) from error
    _next.forked = False


def _leave_unreachable(server: Any) -> None:
    """Leave a fork server whose socket somebody has removed to the children that it has.

    It ends with this process, as its end of a pipe stays open until then.
    """
    address = server._forkserver_address
    if address is not None and not Path(address).exists():
        server._forkserver_address = server._forkserver_alive_fd = server._forkserver_pid = None


@contextmanager
def _same_import_path() -> Iterator[None]:
    """Let a Python that is started in the block look for modules where this process does.

    The fork server is a `python -c`, which would look into the current folder first, where a
    stranger may have the name of a package that it is to import.
    """
    path = [str(Path(entry).absolute()) for entry in sys.path if os.pathsep not in entry]
    changed = {"PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1"}
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def start(job: Job, taken: Taken | None = None) -> Child:
    """Start a job and return at once (the very first waits for the fork server to import torch).

    Args:
        job: what to do.
        taken: the places of its processes; None: whatever the system gives them.
    """
    taken = seats(job.processes) if taken is None else taken
    for attempt in range(ATTEMPTS):
        time.sleep(0.1 * attempt)  # one that is dying still answers, or cannot be waited for yet
        start_server()
        try:
            return Child(job, taken)
        except (EOFError, ConnectionError, FileNotFoundError) as error:
            lost = error
    raise LostServer(
        f"the process that starts the runs died {ATTEMPTS} times as it began: look for the "
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
    """Do one job and wait for it; the arguments are those of `Job`.

    Messages of a job that fails are delivered as far as they came.
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
    """Do jobs, several at once, and return the signal that ended it early, if one did.

    Args:
        jobs: taken one by one, each when it has a place, so an iterator may claim work late. By
            the number of their processes where that is not 1.
        places: where they run; None: one after the other, wherever the system puts them.
        on_start: called with a job and its places before it starts.
        on_message: called with everything a job sends, in order.
        on_end: called once for each job that was started, after its last message.
        stop: asked again and again; once it names what stops the work, all that runs is asked to
            save itself, and nothing more is taken.

    An exception in a callback, or in the iterator, kills what runs and is passed on.
    """
    places = places or Places([DevicePlace()])
    lanes = jobs if isinstance(jobs, Mapping) else {1: jobs}
    waiting = {width: iter(lane) for width, lane in lanes.items()}
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
                    if job is None:
                        del waiting[width]
                        continue
                    taken = places.take(width)
                    on_start(job, taken)
                    running.append(start(job, taken))
                if not running:
                    return signals.first
                _pause(running, signals)
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


def _pause(running: list[Child], signals: "_Signals") -> None:
    # In this order: what dies in between is still waited for, or due.
    waitables = [signals.reader, *(w for child in running for w in child.waitables())]
    timeout = min(child.due() for child in running) - time.monotonic()
    wait(waitables, max(0.0, timeout))
    signals.drain()


class _Signals:
    """Notes what asks to stop while it is entered; in other threads than the main one, nothing."""

    def __init__(self) -> None:
        self.first: signal.Signals | None = None
        self._interrupts = 0
        self.reader, self._writer = os.pipe()
        os.set_blocking(self.reader, False)
        os.set_blocking(self._writer, False)
        self._before: dict[signal.Signals, Any] = {}

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
        """Whether somebody at a keyboard has asked twice."""
        return self._interrupts > 1

    def drain(self) -> None:
        """Empty the pipe that wakes the waiting parent."""
        with suppress(BlockingIOError):
            os.read(self.reader, 4096)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self.reader)
        os.close(self._writer)
