"""The child process of a run: it sets limits, does the work and reports how it ended. Torch-free.

`lra.runners.isolation.isolate` starts `enter` in a new process. The last message on the pipe is
always an `Ending`, unless the process dies; then the parent uses the exit code.
"""

import faulthandler
import gc
import multiprocessing
import os
import pickle
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, NamedTuple

from lra.conf import garbage
from lra.conf.plain_files import APPENDING
from lra.conf.system_errors import out_of_memory
from lra.runners.isolation import descendants, temporary
from lra.runners.records import Status, legible, text_of
from lra.runners.storage.atomic import fault_of, make_folder, unwritable
from lra.tasks.data.signals import STOPS, let_through

Send = Callable[[object], None]
"""Sends a message to the parent."""
Work = Callable[[Any, Send], None]
"""Does the work of a child with an argument, and sends messages."""

STATUSES: Mapping[str, Status] = {
    "Unsupported": Status.unsupported,
    "Diverged": Status.diverged,
    "FloatingPointError": Status.diverged,
    "MemoryError": Status.out_of_memory,
    "OutOfMemoryError": Status.out_of_memory,
    "NotPrepared": Status.skipped,
    "BadData": Status.skipped,
}
"""The status that an exception gives, by the name of its class or of a base class."""

OF_DATA = frozenset({"NotPrepared", "BadData"})
"""Exceptions which say that data are missing or damaged."""

_LONGEST_REASON = 600  # characters


class Ending(NamedTuple):
    """How a child ended."""

    status: Status
    reason: str = ""
    interrupted: bool = False
    """True: the run was stopped before its end; no row is written, and the run starts again."""
    storage: bool = False
    """True: it was interrupted because storage failed; other runs would fail equally."""
    may_pass: bool = False
    """Whether storage may work again after a while."""
    no_data: bool = False
    """True: it failed because data are missing or damaged; it may succeed when they are back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """The settings of a child process, which apply before the code of the work is imported."""

    environment: Mapping[str, str]
    """The present variables of the parent; the fork server has older ones."""
    memory_bytes: int | None
    threads: int | None
    cores: tuple[int, ...]
    """The only cores on which the process runs; (): the cores of its parent."""
    statuses: Mapping[str, Status]
    log: Path | None
    speaks: bool
    """Whether messages are sent; only rank 0 sends them."""


def enter(connection: Connection, setting: ProcessSettings, payload: bytes) -> None:
    """Apply the settings, do the work, and send its `Ending`.

    Args:
        connection: the writing end of the pipe. Messages are `(False, message)`; the last one is
            `(True, (Ending, its monotonic time))`.
        setting: limits and environment.
        payload: the pickled pair of a `Work` and its argument, from the parent.
    """
    gc.freeze()  # the garbage collector need not search the imports of the fork server
    garbage.usual()  # the parent collects garbage less often, which would change peak memory
    os.setsid()  # only the parent gets Ctrl-C of the terminal; the group is killed as a whole
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN if number is signal.SIGINT else signal.SIG_DFL)
    let_through()  # the parent blocked these signals in the server from which this was forked
    os.environ.clear()
    os.environ.update(setting.environment)
    descendants.adopt_orphans()
    # The last exit function, because those of libraries end the processes that they started.
    Finalize(None, descendants.end_descendants, exitpriority=-1_000)
    threading.Thread(target=_die_with_parent, name="lifeline", daemon=True).start()

    sending = threading.Lock()  # a thread that prepares batches may send messages, too

    def send(message: object) -> None:
        if setting.speaks:
            with sending:
                connection.send((False, message))

    try:
        temporary.base_folder()  # raises now, not in a library, if nothing can be written there
        if setting.log is not None:
            _redirect(setting.log)
        faulthandler.enable(file=2)
        if setting.cores:
            os.sched_setaffinity(0, setting.cores)  # threads of libraries inherit this
        _limit_threads(setting.threads)
        # This imports the module of the work before the memory limit is computed.
        work, argument = pickle.loads(payload)  # noqa: S301 - from the parent, never from disk
        _limit_memory(setting.memory_bytes)
        work(argument, send)
        ending, at = Ending(Status.ok), time.monotonic()
    except BaseException as error:  # noqa: BLE001 - no error of a run may end the sweep
        if setting.memory_bytes is not None:
            _, hard = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (hard, hard))  # the report needs memory, too
        at = time.monotonic()
        ending = judge(error, setting)
        if ending.status is Status.crashed:
            with suppress(OSError):  # writing the log may fail, too
                traceback.print_exception(error)
    connection.send((True, (ending, at)))
    connection.close()


def judge(error: BaseException, setting: ProcessSettings) -> Ending:
    """Return the ending that an exception of the work gives."""
    names = [kind.__name__ for kind in type(error).__mro__]
    text = text_of(error).strip()
    fault = fault_of(error)
    if fault is not None:
        return Ending(
            Status.skipped, legible(fault.words), interrupted=True, storage=True,
            may_pass=fault.may_pass,
        )  # fmt: skip
    if "Interrupted" in names:
        return Ending(Status.skipped, shorten(text or "interrupted"), interrupted=True)
    status = status_of(error, setting.statuses)
    # C code that gets no memory may fail without an exception, which Python reports so.
    silent = isinstance(error, SystemError) and "without exception set" in text
    if silent and setting.memory_bytes is not None:
        status = Status.out_of_memory
    if status is Status.out_of_memory:
        at = text.find("DefaultCPUAllocator")  # before it PyTorch names a file of its sources
        limit = "" if setting.memory_bytes is None else f" (limit {setting.memory_bytes:,} bytes)"
        detail = text[max(at, 0) :] or "no memory left"
        return Ending(status, shorten(f"{type(error).__name__}: {detail}{limit}"))
    if status is not Status.crashed:
        reason = shorten(text or type(error).__name__)
        return Ending(status, reason, no_data=not OF_DATA.isdisjoint(names))
    log = "" if setting.log is None else f"; traceback in {setting.log}"
    message = shorten(f"{type(error).__name__}: {text}")
    return Ending(status, legible(f"{message} (at {_describe_place(error)}){log}"))


def status_of(error: BaseException, statuses: Mapping[str, Status] = STATUSES) -> Status:
    """Return the status of work that has raised an exception."""
    names = (kind.__name__ for kind in type(error).__mro__)
    found = next((statuses[name] for name in names if name in statuses), None)
    if found is not None:
        return found
    return Status.out_of_memory if out_of_memory(error) else Status.crashed


def shorten(text: str) -> str:
    """Return a reason as one line that fits into the footnote of a table."""
    return legible(text, _LONGEST_REASON)


def _describe_place(error: BaseException) -> str:
    """Return file, line and function of the innermost frame outside installed packages."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return "an unknown place"
    ours = [frame for frame in frames if "site-packages" not in Path(frame.filename).parts]
    frame = ours[-1] if ours else frames[-1]
    return f"{'/'.join(Path(frame.filename).parts[-3:])}:{frame.lineno} in {frame.name}"


def _redirect(log: Path) -> None:
    """Append all output of this process to the file `log`."""
    sys.stdout.flush()
    sys.stderr.flush()
    make_folder(log.parent)
    try:
        file = os.open(log, APPENDING, 0o666)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.close(file)
    except OSError as error:
        raise unwritable(log, error) from error


def _die_with_parent() -> None:
    """Kill this process and all that it started when the parent has ended.

    Otherwise it would write checkpoints of a run that a resumed sweep has started again.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        descendants.end_descendants()
        os.killpg(os.getpgrp(), signal.SIGKILL)


def _limit_threads(threads: int | None) -> None:
    if threads is None:
        return
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(threads)  # for libraries that load later
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)


def _limit_memory(memory_bytes: int | None) -> None:
    """Limit the address space to its present size plus `memory_bytes`.

    Libraries map gigabytes that they never use, so their address space is not part of the limit.
    """
    if memory_bytes is None:
        return
    statm = Path("/proc/self/statm")
    if not statm.exists():
        raise RuntimeError(
            f"memory_limit_bytes={memory_bytes} needs Linux, but this system is {sys.platform}; "
            "set memory_limit_bytes=null"
        )
    mapped = int(statm.read_text().split()[0]) * resource.getpagesize()  # the address space
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = mapped + memory_bytes
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
