"""Several workers on one machine: forks of one process, which share what it has imported."""

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
"""What every worker, and the server from which its cells come, would import."""
finalizers: Any = util
"""What `multiprocessing` does at the end of a process, which `os._exit` leaves out."""


def run_in_forks(count: int, one: Callable[[int], int]) -> int:
    """Run `one(number)` in so many forks and wait for them; return the exit code of them together.

    2 where one could not begin, else `STORAGE` or `AGAIN` where one wants another job, else 0: what
    asks to stop is passed on to all of them, and one that dies is not replaced: others take its
    cells.
    """
    isolate.prepare(*PRELOAD, fork=True)
    for name in IMPORTED:
        importlib.import_module(name)
    forked_server.share_tracker()
    gc.collect()
    gc.freeze()
    running: dict[int, int] = {}
    stopped = 0

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        nonlocal stopped
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
        _flush()
        pid = os.fork()
        if pid == 0:
            _become(number, one)
        running[pid] = number
    while running:
        pid, status = os.wait()
        if pid not in running:  # a helper of Python's own, which was killed, say
            continue
        number = running.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        codes.append(128 - code if code < 0 else code)
        if code:
            _say(f"{time.strftime('%H:%M:%S')} worker {number + 1} ended with {code}")
    for asked, handler in before.items():
        signal.signal(asked, handler)
    _say(f"{len(codes)} workers ended")
    if stopped:
        return 128 + stopped
    return together(codes)


def _say(words: str) -> None:
    """Print a line; a log that takes none now, and perhaps with the next, is no reason to stop."""
    with suppress(OSError, ValueError):
        print(words)
    _flush()


def _flush() -> None:
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()


def together(codes: Collection[int]) -> int:
    """Return how workers that ended so have ended together: see `run_in_forks`."""
    return next((code for code in (2, STORAGE, AGAIN) if code in codes), 0)


def _become(number: int, one: Callable[[int], int]) -> None:
    """Be a worker, and end as it does."""
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
