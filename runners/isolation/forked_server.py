"""A fork server that is a fork of this process: the two share the memory of what was imported.

`multiprocessing` starts a new Python, which imports torch again: a second, and a quarter of a
gigabyte for each of a hundred workers on one machine.
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
    """Start what `multiprocessing` starts with a fork server, once for all later forks."""
    with left_to_parent():
        resource_tracker.ensure_running()


@contextmanager
def start_by_fork() -> Iterator[None]:
    """Let a fork server that is started in the block be a fork.

    It is a new Python where this process has other threads, which a fork would lose.
    """
    patched: Any = util
    before = patched.spawnv_passfds
    if threading.active_count() == 1:
        patched.spawnv_passfds = fork_server
    try:
        yield
    finally:
        patched.spawnv_passfds = before


def fork_server(path: bytes, args: Sequence[Any], passed: Sequence[int]) -> int:
    """Fork where `multiprocessing` would start a Python that becomes the fork server."""
    if "forkserver" not in args[-1]:
        return _spawn(path, args, passed)
    sys.stdout.flush()
    sys.stderr.flush()
    if pid := os.fork():
        return pid
    try:
        free = [0, 1, 2, *sorted(passed), os.sysconf("SC_OPEN_MAX")]
        for before, after in pairwise(free):
            os.closerange(before + 1, after)
        for asked in STOPS:
            signal.signal(asked, signal.SIG_DFL)
        server: Any = forkserver
        server._forkserver.__init__()  # its lock is taken while a server is started
        sys.modules["__main__"] = ModuleType("__main__")
        exec(args[-1], {})  # what `python -c` would run
    finally:
        os._exit(0)
