"""Several workers on one machine as forks of one process, which share its imported modules."""

import gc
import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection
from contextlib import suppress
from multiprocessing import util
from types import FrameType
from typing import Any

from lra.cli import explain
from lra.cluster.engine import AGAIN, STORAGE
from lra.execution.preload import PRELOAD
from lra.runners.isolation import forked_server, isolate
from lra.tasks.data.signals import STOPS

IMPORTED = ("torch", *PRELOAD, "lra.cluster.worker", "lra.runners.training.checkpoint")
"""Modules that every worker, and the server that starts its cells, would import."""
finalizers: Any = util
"""Runs what `multiprocessing` does at the end of a process, because `os._exit` skips it."""


def run_in_forks(count: int, one: Callable[[int], int]) -> int:
    """Run `one(number)` in `count` forks, wait for all, and return one exit code (see `together`).

    A signal to stop is passed on to all forks, and the code is then 128 plus its number. A fork
    that dies is not replaced, because other workers take its cells.
    """
    isolate.prepare(*PRELOAD, fork=True)
    for name in IMPORTED:
        importlib.import_module(name)
    forked_server.share_tracker()  # one resource tracker of `multiprocessing` for all forks
    gc.collect()
    gc.freeze()  # forks share memory as long as no collection writes into it
    running: dict[int, int] = {}
    stopped = 0

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        """Pass a signal on to all forks."""
        nonlocal stopped
        # Forks get SIGTERM, also after Ctrl-C, and the exit code says so.
        stopped = signal.SIGTERM if number == signal.SIGINT else number
        for pid in running:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    before = {number: signal.getsignal(number) for number in STOPS}
    for caught in before:
        signal.signal(caught, stop)
    _say(f"{count} workers begin")
    codes: list[int] = []
    for number in range(count):
        if stopped:
            break
        _flush()  # otherwise the fork would print the same buffered text again
        pid = os.fork()
        if pid == 0:  # this is the fork, which never returns
            _run_in_fork(number, one)
        running[pid] = number
    while running:
        pid, status = os.wait()
        if pid not in running:  # a helper process of Python, which was killed
            continue
        number = running.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        codes.append(128 - code if code < 0 else code)  # negative: the signal that killed it
        if code:
            _say(f"{time.strftime('%H:%M:%S')} worker {number + 1} ended with code {code}")
    for caught, handler in before.items():
        signal.signal(caught, handler)
    _say(f"{len(codes)} workers ended")
    if stopped:
        return 128 + stopped
    return together(codes)


def _say(words: str) -> None:
    """Print a line. An error of the log is ignored, because it must not stop the workers."""
    with suppress(OSError, ValueError):
        print(words)
    _flush()


def _flush() -> None:
    """Write out what is printed, as far as the streams can be written."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()


def together(codes: Collection[int]) -> int:
    """Return the common exit code of workers: 2 if any has it, else `STORAGE`, `AGAIN` or 0."""
    return next((code for code in (2, STORAGE, AGAIN) if code in codes), 0)


def _run_in_fork(number: int, one: Callable[[int], int]) -> None:
    """Run `one(number)` in this fork, and end the process with its exit code."""
    code = 1
    try:
        for caught in STOPS:
            signal.signal(caught, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        isolate.start_server()
        code = one(number)
    except KeyboardInterrupt:
        code = 130
    except BaseException as error:  # noqa: BLE001  # the end of this process
        if isinstance(error, Exception):
            code = explain(error)
        else:
            traceback.print_exception(error)
    finally:
        _flush()
        with suppress(OSError):  # the folder with the socket of its fork server
            finalizers._run_finalizers()
        os._exit(code)
