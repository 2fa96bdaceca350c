"""Temporary names of files in a store, which tell who writes them. Torch-free."""

import hashlib
import os
import re
import socket
import uuid
from functools import cache
from pathlib import Path

from runners.storage.holders import Holder, alive, own_place, own_start

_NAME = re.compile(r"\.(?P<place>[0-9a-f]{12})\.(?P<pid>\d+)\.(?P<started>\d+)\.[0-9a-f]{8}\.tmp")


@cache
def _place() -> str:
    """Return in few letters where numbers of processes mean what they mean here."""
    place = f"{socket.gethostname()} {own_place()}"
    return hashlib.sha256(place.encode()).hexdigest()[:12]


def temporary(path: Path) -> Path:
    """Return a name beside `path`, under which this process writes what will be there."""
    who = f"{_place()}.{os.getpid()}.{own_start() or 0}"
    return path.parent / f".{path.name}.{who}.{uuid.uuid4().hex[:8]}.tmp"


def has_died(temporary: Path) -> bool:
    """Tell whether the process that made a temporary file is known to have ended."""
    found = _NAME.search(temporary.name)
    if found is None or found["place"] != _place():
        return False
    started = int(found["started"]) or None
    holder = Holder(socket.gethostname(), int(found["pid"]), started, own_place())
    return alive(holder) is False
