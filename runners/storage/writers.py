"""Who writes into a store: a process is known by its machine and its number there. Torch-free."""

import os
import re
import socket
import uuid
from functools import cache
from pathlib import Path

_TEMPORARY = re.compile(r"\.(?P<place>[^/]+)\.(?P<pid>\d+)\.[0-9a-f]{8}\.tmp")


@cache
def place() -> str:
    """Return the name under which processes of this machine, or this container, have numbers.

    Containers of one machine may share its name and yet count their processes by themselves.
    """
    try:
        numbers = f"-{Path('/proc/self/ns/pid').stat().st_ino:x}"
    except OSError:  # no Linux: the name alone
        numbers = ""
    return socket.gethostname() + numbers


def temporary(path: Path) -> Path:
    """Return a name beside `path`, under which this process writes what will be there."""
    return path.parent / f".{path.name}.{place()}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp"


def has_died(temporary: Path) -> bool:
    """Tell whether the process that made a temporary file is known to have ended."""
    found = _TEMPORARY.search(temporary.name)
    if found is None or not found["place"].endswith(f".{place()}"):
        return False
    return not is_alive(int(found["pid"]))


def is_alive(pid: int) -> bool:
    """Tell whether a process of this machine lives, whoever it belongs to."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
