"""What a part leaves behind on the machine: processes, shared memory, temporary files."""

import os
import time
from contextlib import suppress
from pathlib import Path

GONE = (FileNotFoundError, ProcessLookupError, PermissionError)
SHARED = Path("/dev/shm")
OURS = ("torch_", "psm_", "sem.mp-", "pymp-")
"""How names of shared memory begin that PyTorch or Python's `multiprocessing` gives; another
program's is none of ours."""
PATIENCE_S = 15.0
"""Within which everything that belongs to a sweep must have ended."""


def processes_in(folder: Path) -> dict[int, str]:
    """Return the processes that stand in a folder or below it, with what they run."""
    inside = os.fspath(folder.resolve())
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        with suppress(*GONE):
            where = os.fspath((entry / "cwd").readlink())
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z" and (where == inside or where.startswith(inside + "/")):
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found[int(entry.name)] = words[:100]
    return found


def left_processes(folder: Path) -> dict[int, str]:
    """Return those that are still there once everything had time to end."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := processes_in(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def shared_memory() -> set[str]:
    """Return the names of shared memory that no living process has mapped."""
    entries = SHARED.iterdir() if SHARED.is_dir() else ()
    there = {entry.name for entry in entries if entry.name.startswith(OURS)}
    if not there:
        return there
    used = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(*GONE):
                maps = (entry / "maps").read_text(errors="replace")
                used |= {name for name in there if f"{SHARED}/{name}" in maps}
    return there - used


def left_shared_memory(before: set[str]) -> set[str]:
    """Return what is there more, once everything had time to end: also what is not of the case."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := shared_memory() - before) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def temporary_files(folder: Path) -> list[str]:
    """Return what lies in a folder for temporary files, but what is kept there.

    PyTorch keeps a cache.
    """
    names = (entry.name for entry in folder.iterdir())
    return sorted(name for name in names if not name.startswith("torchinductor_"))
