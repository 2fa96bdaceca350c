"""Names of temporary files in a store, which identify the process that writes. Torch-free."""

import os
import re
import socket
import uuid
from pathlib import Path

from lra.runners.storage.holders import Holder, alive, place_mark, process_place, process_start

_NAME = re.compile(r"\.(?P<place>[0-9a-f]{12})\.(?P<pid>\d+)\.(?P<started>\d+)\.[0-9a-f]{8}\.tmp")


def temporary(path: Path) -> Path:
    """Return a new temporary path in the folder of `path`, which names this process."""
    process = f"{place_mark()}.{os.getpid()}.{process_start() or 0}"
    return path.parent / f".{path.name}.{process}.{uuid.uuid4().hex[:8]}.tmp"


def has_died(temporary: Path) -> bool:
    """Return whether the process that made a temporary file has certainly ended."""
    match = _NAME.search(temporary.name)
    if match is None or match["place"] != place_mark():
        return False
    started = int(match["started"]) or None
    holder = Holder(socket.gethostname(), int(match["pid"]), started, process_place())
    return alive(holder) is False
