"""Who holds a claim, and whether a process of this machine still lives."""

import hashlib
import os
import socket
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from lra.conf.plain_files import NoJson, open_file, parse_json, typed_object
from lra.conf.system_errors import persistent
from lra.runners.storage.homes import Home, boot_id

LONGEST = 100_000
"""Bytes of a claim that are read; ours have a few hundred."""


class Holder(NamedTuple):
    """The process that holds a claim, as it has written it."""

    host: str
    pid: int
    started: int | None = None
    """When the process was started, in ticks of the kernel since it was booted; None: unknown."""
    place: str = ""
    """The boot of a kernel and a name space of its processes, in which `pid` means something."""
    worker: str = ""
    """Name of the worker; "": a sweep without one."""
    title: str = ""
    """Of the cell."""
    at: float = 0.0
    """When it was claimed: seconds since 1970, by the file server's clock."""
    home: Home | None = None
    """The folder of the claim; None: an older version."""


class ClaimFile(NamedTuple):
    """What is in a claim's file."""

    text: str
    touched_ns: int
    """The last sign of life, by the file server's clock."""
    holder: Holder | None = None
    """None: not written yet, or no claim."""


def read_claim(path: Path) -> ClaimFile | None:
    """Read a claim; None where there is none. Raises OSError, once it has tried for a while.

    An open file has the times that the server gives it now, a path on a network file system those
    that it gave a minute ago.
    """
    try:
        text, touched_ns = persistent(_read, path)
    except FileNotFoundError:
        return None
    return ClaimFile(text, touched_ns, _holder(text))


def _read(path: Path) -> tuple[str, int]:
    descriptor = open_file(path)
    try:
        text = os.read(descriptor, LONGEST).decode(errors="replace")
        return text, os.fstat(descriptor).st_mtime_ns
    finally:
        os.close(descriptor)


def _holder(text: str) -> Holder | None:
    try:
        note = typed_object(parse_json(text.encode()), {"host": str, "pid": int})
    except NoJson:
        return None  # its holder may be between creating and filling it: the age will tell
    started, at = note.get("started"), note.get("at", 0.0)
    if note["pid"] < 1:  # which stands for a group of processes
        return None
    return Holder(
        host=note["host"],
        pid=note["pid"],
        started=started if type(started) is int else None,
        place=str(note.get("place", "")),
        worker=str(note.get("worker", "")),
        title=str(note.get("title", "")),
        at=float(at) if isinstance(at, float | int) else 0.0,
        home=Home.of_note(note.get("home")),
    )


def alive(holder: Holder) -> bool | None:
    """Tell whether a holder lives; None where only its signs of life can tell.

    Two containers may have one name of a host, and process numbers are reused: it is the
    kernel's boot, the name space and the start of the process that make a process the same.
    """
    if holder.place:
        if holder.place != process_place():
            return None
        started, dead = start_of(holder.pid)
        if dead or (started is not None and holder.started is not None):
            return not dead and started == holder.started
        return None
    # Of a system that does not tell, or of an older version.
    if holder.host == socket.gethostname() and not _answers(holder.pid):
        return False
    return None


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def start_of(pid: int) -> tuple[int | None, bool]:
    """Return when a process was started, None where nobody says, and whether it is dead."""
    try:
        fields = stat_fields(f"/proc/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError):
        return None, not _answers(pid)  # which may be hidden from other users
    except OSError:
        return None, False
    return int(fields[19]), fields[0] in ("Z", "X")


def stat_fields(path: str | Path) -> list[str]:
    """Return what a process's `stat` says, from its state on. Raises OSError."""
    # The name of the program, in brackets, may hold anything.
    return Path(path).read_text(errors="replace").rpartition(")")[2].split()


def process_start() -> int | None:
    """Return when this process was started, in ticks of the kernel; None where it says nothing."""
    return _start_once(os.getpid())


@lru_cache(maxsize=1)
def _start_once(pid: int) -> int | None:
    return start_of(pid)[0]


@lru_cache(maxsize=1)
def process_place() -> str:
    """Return where numbers of processes mean what they mean here; "" where the system is silent."""
    try:
        return f"{boot_id()} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115 - no path
    except OSError:
        return ""


def machine_id() -> str:
    """Return `boot_id`, or the name of the host where the system is silent."""
    try:
        return boot_id()
    except OSError:
        return socket.gethostname()


@lru_cache(maxsize=1)
def place_mark() -> str:
    """Return in twelve letters where numbers of processes mean what they mean here.

    A host's name tells it only where the system does not: a laptop gets others from networks.
    """
    return hashlib.sha256((process_place() or socket.gethostname()).encode()).hexdigest()[:12]
