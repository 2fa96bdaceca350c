"""Reads which process holds a claim, and finds out whether the process still lives."""

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
"""At most so many bytes of a claim are read; a claim has a few hundred."""


class Holder(NamedTuple):
    """The process that holds a claim, as it wrote into the claim."""

    host: str
    pid: int
    started: int | None = None
    """When the process was started, in ticks of the kernel since its boot; None: unknown."""
    place: str = ""
    """The boot and the PID namespace in which `pid` is valid: see `process_place`."""
    worker: str = ""
    """Name of the worker; "": a sweep without workers."""
    title: str = ""
    """Title of the run."""
    at: float = 0.0
    """Time of the claim in seconds since 1970, by the clock of the file server."""
    home: Home | None = None
    """The folder for which the claim was written; None: an older version of lra wrote it."""


class ClaimFile(NamedTuple):
    """The content of a claim's file, and when it was touched."""

    text: str
    touched_ns: int
    """When the holder last touched it, in nanoseconds since 1970 by the file server's clock."""
    holder: Holder | None = None
    """None: the file is still empty, or is not a claim."""


def read_claim(path: Path) -> ClaimFile | None:
    """Return the claim at `path`; None if there is none. Raises OSError after some retries.

    The time is read from the open file, because a network file system may return an old time for
    a path.
    """
    try:
        text, touched_ns = persistent(_read_text_and_time, path)
    except FileNotFoundError:
        return None
    return ClaimFile(text, touched_ns, _parse_holder(text))


def _read_text_and_time(path: Path) -> tuple[str, int]:
    descriptor = open_file(path)
    try:
        text = os.read(descriptor, LONGEST).decode(errors="replace")
        return text, os.fstat(descriptor).st_mtime_ns
    finally:
        os.close(descriptor)


def _parse_holder(text: str) -> Holder | None:
    """Return the holder that the text of a claim names; None if the text is no complete claim."""
    try:
        note = typed_object(parse_json(text.encode()), {"host": str, "pid": int})
    except NoJson:
        return None  # the holder may have just created the file, and not written it yet
    started, at = note.get("started"), note.get("at", 0.0)
    if note["pid"] < 1:  # for os.kill, this would be a group of processes
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
    """Return whether a holder lives; None if this process cannot see the holder.

    Two containers may have the same host name, and process numbers are reused. So a process is the
    same only if boot, PID namespace, number and start time are equal.
    """
    if holder.place:
        if holder.place != process_place():
            return None
        started, is_dead = start_of(holder.pid)
        if is_dead or (started is not None and holder.started is not None):
            return not is_dead and started == holder.started
        return None
    # Without a place (no Linux, or an older version), only a death on this host can be noticed.
    if holder.host == socket.gethostname() and not _process_exists(holder.pid):
        return False
    return None


def _process_exists(pid: int) -> bool:
    """Return whether a process of this machine has the number `pid`; it may be a zombie."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def start_of(pid: int) -> tuple[int | None, bool]:
    """Return when a process was started (None: unknown), and whether it is dead."""
    try:
        fields = stat_fields(f"/proc/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError):
        return None, not _process_exists(pid)  # /proc may hide processes of other users
    except OSError:
        return None, False
    # The start is field 22 of the file, whose fields from 3 on are here; a zombie (Z) is dead.
    return int(fields[19]), fields[0] in ("Z", "X")


def stat_fields(path: str | Path) -> list[str]:
    """Return the fields of a process's `stat` file, from its state on. Raises OSError."""
    # The second field, the name of the program in brackets, may contain spaces and brackets.
    return Path(path).read_text(errors="replace").rpartition(")")[2].split()


def process_start() -> int | None:
    """Return when this process was started, in ticks of the kernel; None if unknown."""
    return _start_once(os.getpid())


@lru_cache(maxsize=1)
def _start_once(pid: int) -> int | None:
    return start_of(pid)[0]


@lru_cache(maxsize=1)
def process_place() -> str:
    """Return the boot and PID namespace in which our process numbers are valid; "" if unknown."""
    try:
        return f"{boot_id()} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115 - no path
    except OSError:
        return ""


def machine_id() -> str:
    """Return `boot_id`, or the name of the host if the system has none."""
    try:
        return boot_id()
    except OSError:
        return socket.gethostname()


@lru_cache(maxsize=1)
def place_mark() -> str:
    """Return twelve letters of a hash of `process_place`.

    The name of the host is used only if the place is unknown, because a laptop's name may change
    with its network.
    """
    return hashlib.sha256((process_place() or socket.gethostname()).encode()).hexdigest()[:12]
