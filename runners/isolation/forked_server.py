"""A fork server that is a fork of this process, so both share the memory of imported modules.

`multiprocessing` would start a new Python, which imports torch again: this takes a second, and a
quarter of a gigabyte for each worker on a machine.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from multiprocessing import forkserver, resource_tracker, util
from types import ModuleType
from typing import Any

from lra.tasks.data.signals import STOPS, left_to_parent

_spawn = util.spawnv_passfds


def share_tracker() -> None:
    """Start the resource tracker of `multiprocessing` once, so that all later forks share it."""
    with left_to_parent():
        resource_tracker.ensure_running()


@contextmanager
def start_by_fork() -> Iterator[None]:
    """Let `multiprocessing` start its fork server by a fork in the `with` block.

    If this process has other threads, which a fork would lose, a new Python is started as usual.
    """
    patched: Any = util
    original = patched.spawnv_passfds
    if threading.active_count() == 1:
        patched.spawnv_passfds = fork_server
    try:
        yield
    finally:
        patched.spawnv_passfds = original


def fork_server(path: bytes, args: Sequence[Any], passed: Sequence[int]) -> int:
    """Fork in place of `multiprocessing`, which would start a Python for the fork server.

    The arguments are those of `spawnv_passfds`, which this replaces; `passed` are the open files
    that the server needs. The parent gets the process number; the fork never returns.
    """
    if "forkserver" not in args[-1]:  # another program, such as the resource tracker
        return _spawn(path, args, passed)
    sys.stdout.flush()
    sys.stderr.flush()
    if pid := os.fork():
        return pid
    try:
        open_files = [0, 1, 2, *sorted(passed), os.sysconf("SC_OPEN_MAX")]
        for before, after in pairwise(open_files):
            os.closerange(before + 1, after)  # close all other files
        for number in STOPS:
            signal.signal(number, signal.SIG_DFL)
        server: Any = forkserver
        server._forkserver.__init__()  # the fork inherited its lock, which is locked
        sys.modules["__main__"] = ModuleType("__main__")
        exec(args[-1], {})  # the code that `python -c` would run
    finally:
        os._exit(0)  # without the exit functions of the process that was forked
