"""What a part leaves behind on the machine: processes, shared memory, temporary files."""

import hashlib
import multiprocessing
import os
import re
import time
from contextlib import suppress
from functools import partial
from multiprocessing import shared_memory
from pathlib import Path

GONE = (FileNotFoundError, ProcessLookupError, PermissionError)
SHARED = Path("/dev/shm")
NOTED = "processes.txt"
"""Where every process of a case notes its number."""
OF_TORCH = re.compile(r"torch_(\d+)_")
"""Shared memory of PyTorch, with the number of the process that made it."""
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


def mark_processes(folder: Path) -> None:
    """Have the names of shared memory tell that this process, or a fork of one, has made it.

    Not that of a Python that these start anew: nothing tells it from a stranger's.

    Args:
        folder: of the case.
    """
    config = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    config["semprefix"] = f"/{_mark(folder)}"
    shared_memory._SHM_NAME_PREFIX = f"/{_mark(folder)}"  # type: ignore[attr-defined]
    note = partial(_note, folder / NOTED)
    note()
    os.register_at_fork(after_in_child=note)


def _mark(folder: Path) -> str:
    """Eight letters, for which Python's names have room."""
    return hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:8]


def _note(path: Path) -> None:
    with suppress(OSError):  # of a disk that is full on purpose
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(file, b"%d\n" % os.getpid())
        os.close(file)


def own_shared_memory(folder: Path) -> set[str]:
    """Return the names of what processes of a case have made and no living process has mapped."""
    mark, noted = _mark(folder), folder / NOTED
    numbers = {*noted.read_text().split()} if noted.exists() else set()
    there = set()
    for name in [entry.name for entry in SHARED.iterdir()] if SHARED.is_dir() else []:
        made = OF_TORCH.match(name)
        if name.removeprefix("sem.").startswith(mark) or (made and made[1] in numbers):
            there.add(name)
    if not there:
        return there
    used = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(*GONE):
                maps = (entry / "maps").read_text(errors="replace")
                used |= {name for name in there if f"{SHARED}/{name}" in maps}
    return there - used


def left_shared_memory(folder: Path) -> set[str]:
    """Return what is still there of a case, once everything had time to end."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := own_shared_memory(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def temporary_files(folder: Path) -> list[str]:
    """Return what lies in a folder for temporary files, but what is kept there.

    PyTorch keeps a cache.
    """
    names = (entry.name for entry in folder.iterdir())
    return sorted(name for name in names if not name.startswith("torchinductor_"))
