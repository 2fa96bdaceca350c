"""What a process has started, read from /proc, so that it ends with its cell. Torch-free.

Ending a process group is not enough: a new session (`start_new_session=True`, `setsid`) leaves the
group. A process belongs to a cell by any of three signs:

- its parents lead to the cell; orphans included, because the cell adopts them (`adopt_orphans`);
- its environment holds the cell's mark, which every program that was started inherits;
- it holds the writing end of the cell's pipe, which every fork inherits.

What can still escape, and only where the cell dies at once (a signal, `os._exit`): a process that
left the group, was started with another environment or as a mere fork, and closed all files;
that is what a daemon does. Systems without /proc have the process group alone.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from lra.runners.storage.holders import stat_fields

MARK = "LRA_CELL_PROCESS"
"""Environment variable that tells a cell's processes from others."""
_PROC = Path("/proc")
_PR_SET_CHILD_SUBREAPER = 36
_ROUNDS = 10
_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)
"""What /proc answers about processes that ended meanwhile, or are somebody else's."""


def adopt_orphans() -> None:
    """Become the parent of every descendant whose parent ends (Linux)."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def processes_below(pid: int) -> set[int]:
    """Return the processes whose parents lead to the living process `pid`."""
    children: dict[int, list[int]] = {}
    for child in _processes():
        with suppress(*_GONE):
            parent = int(stat_fields(_PROC / str(child) / "stat")[1])
            children.setdefault(parent, []).append(child)
    pids: set[int] = set()
    waiting = [pid]
    while waiting:
        new = set(children.get(waiting.pop(), ())) - pids
        pids |= new
        waiting += new
    return pids


def marked_processes(mark: str) -> set[int]:
    """Return the processes whose environment holds `MARK` with this value."""
    entry = f"{MARK}={mark}".encode()
    pids = set()
    for pid in _processes():
        with suppress(*_GONE):
            if entry in (_PROC / str(pid) / "environ").read_bytes().split(b"\0"):
                pids.add(pid)
    return pids


def holders(pipe: int) -> set[int]:
    """Return the processes that can write into the pipe with this inode number."""
    return {pid for pid in _processes() if pid != os.getpid() and _writes(pid, pipe)}


def kill_found(find: Callable[[], Iterable[int]]) -> None:
    """Kill what `find` returns, again and again until it finds nothing new."""
    ended: set[int] = set()
    for _ in range(_ROUNDS):
        new = set(find()) - ended
        if not new:
            return
        for pid in new:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        ended |= new


def end_descendants() -> None:
    """Kill everything that this process has started."""
    kill_found(lambda: processes_below(os.getpid()))


def _processes() -> Iterator[int]:
    with suppress(FileNotFoundError):
        for entry in os.scandir(_PROC):
            if entry.name.isdecimal():
                yield int(entry.name)


def _writes(pid: int, pipe: int) -> bool:
    with suppress(*_GONE):
        for entry in (_PROC / str(pid) / "fd").iterdir():
            with suppress(*_GONE):
                if str(entry.readlink()) == f"pipe:[{pipe}]":
                    content = (_PROC / str(pid) / "fdinfo" / entry.name).read_text()
                    flags = next(line for line in content.splitlines() if line.startswith("flags:"))
                    if int(flags.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY:
                        return True
    return False
