"""Finds the processes that a run has started, so that they end with the run. Torch-free.

To kill the process group is not enough, because a process may leave the group by a new session
(`setsid`). /proc shows that a process belongs to a run by any of three signs:

- its parents lead to the process of the run, which also adopts orphans (`adopt_orphans`);
- its environment has the mark of the run, which started programs inherit;
- it has the writing end of the pipe of the run open, which forks inherit.

If a run dies suddenly, only a daemon can escape: a process that left the group, has another
environment, and closed all files. Systems without /proc have only the process group.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from lra.runners.storage.holders import stat_fields

MARK = "LRA_CELL_PROCESS"
"""Environment variable that marks the processes of a run."""
_PROC = Path("/proc")
_PR_SET_CHILD_SUBREAPER = 36  # from <linux/prctl.h>
_ROUNDS = 10  # processes that start processes faster than this are given up
_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)
"""Errors of /proc for processes that have just ended, or belong to another user."""


def adopt_orphans() -> None:
    """Become the parent of every descendant whose parent ends (Linux)."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def processes_below(pid: int) -> set[int]:
    """Return all descendants of the living process `pid`."""
    children: dict[int, list[int]] = {}
    for child in _list_processes():
        with suppress(*_GONE):
            parent = int(stat_fields(_PROC / str(child) / "stat")[1])  # after the state
            children.setdefault(parent, []).append(child)
    pids: set[int] = set()
    waiting = [pid]
    while waiting:
        new = set(children.get(waiting.pop(), ())) - pids
        pids |= new
        waiting += new
    return pids


def marked_processes(mark: str) -> set[int]:
    """Return the processes that have `MARK` with this value in their environment."""
    entry = f"{MARK}={mark}".encode()
    pids = set()
    for pid in _list_processes():
        with suppress(*_GONE):
            if entry in (_PROC / str(pid) / "environ").read_bytes().split(b"\0"):
                pids.add(pid)
    return pids


def holders(pipe: int) -> set[int]:
    """Return the processes that can write into the pipe with this inode number."""
    return {pid for pid in _list_processes() if pid != os.getpid() and _can_write(pid, pipe)}


def kill_found(find: Callable[[], Iterable[int]]) -> None:
    """Kill the processes that `find` returns, and repeat this until it finds no new ones."""
    killed: set[int] = set()
    for _ in range(_ROUNDS):
        new = set(find()) - killed
        if not new:
            return
        for pid in new:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed |= new


def end_descendants() -> None:
    """Kill all processes that this process has started."""
    kill_found(lambda: processes_below(os.getpid()))


def _list_processes() -> Iterator[int]:
    with suppress(FileNotFoundError):
        for entry in os.scandir(_PROC):
            if entry.name.isdecimal():
                yield int(entry.name)


def _can_write(pid: int, pipe: int) -> bool:
    """Return whether process `pid` has the pipe with this inode number open for writing."""
    with suppress(*_GONE):
        for entry in (_PROC / str(pid) / "fd").iterdir():
            with suppress(*_GONE):
                if str(entry.readlink()) == f"pipe:[{pipe}]":
                    content = (_PROC / str(pid) / "fdinfo" / entry.name).read_text()
                    flags = next(line for line in content.splitlines() if line.startswith("flags:"))
                    # The flags of `open` as an octal number; some of its bits are the access mode.
                    if int(flags.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY:
                        return True
    return False
