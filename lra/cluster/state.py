"""What a worker says of itself in a file, for whoever watches; rows and claims are what counts."""

import os
import socket
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conf.plain_files import NoJson, Types, typed
from runners.isolation.progress import Progress
from runners.storage.atomic import make_folder
from runners.storage.sealed import NotSealed, read_sealed, sealed

EVERY_S = 10.0
"""Between two writings while a cell only goes on."""
_NUMBER, _NONE = (float, int), type(None)
_STATE: Types = {
    "worker": str, "host": str, "doing": str, "cells": dict, "endings": dict, "at": _NUMBER,
}  # fmt: skip
_CELL: Types = {
    "title": str, "since": _NUMBER, "phase": (str, _NONE), "done": (int, _NONE),
    "total": (int, _NONE),
}  # fmt: skip


class WorkerState:
    """The file of one worker, written anew when something begins or ends, and now and then."""

    def __init__(self, folder: Path, name: str, group: str) -> None:
        self.path = make_folder(folder / "workers") / f"{name}.json"
        self.about: dict[str, Any] = {
            "worker": name,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "group": group,
            "since": time.time(),
        }
        self.doing = "starting"
        self.cells: dict[str, dict[str, Any]] = {}
        self.endings: Counter[str] = Counter()
        self._written = 0.0

    def begin(self, key: str, title: str) -> None:
        """Note that a cell begins."""
        self.doing = "running"
        self.cells[key] = {"title": title, "since": time.time()}
        self.write()

    def advance(self, key: str, message: Progress) -> None:
        """Note how far a cell is."""
        if (cell := self.cells.get(key)) is None:
            return
        cell |= {"phase": message.phase, "done": message.done, "total": message.total}
        cell["left_s"] = message.left_s
        if time.monotonic() - self._written >= EVERY_S:
            self.write()

    def end(self, key: str, status: str) -> None:
        """Note how a cell ended."""
        self.cells.pop(key, None)
        self.endings[status] += 1
        self.write()

    def say(self, doing: str) -> None:
        """Note what the worker does, beside cells."""
        if doing != self.doing or time.monotonic() - self._written >= EVERY_S:
            self.doing = doing
            self.write()

    def write(self) -> None:
        """Write the file; where that cannot be, the worker goes on."""
        self._written = time.monotonic()
        content = {
            **self.about,
            "doing": self.doing,
            "cells": self.cells,
            "endings": dict(self.endings),
            "at": time.time(),
        }
        aside = self.path.with_name(f".{self.path.name}.tmp")
        try:
            aside.write_bytes(sealed(content))
            aside.replace(self.path)
        except OSError:
            return


def read_states(folder: Path) -> dict[str, Mapping[str, Any]]:
    """Return what the workers of a plan last said of themselves, by their names.

    Files that are damaged are left out: a worker that works writes its own again.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for path in sorted((folder / "workers").glob("*.json")):
        try:
            state = read_sealed(path, _STATE)
            for cell in state["cells"].values():
                typed(cell, _CELL)
        except (OSError, NotSealed, NoJson):
            continue
        if state.get("worker") == path.stem:  # else another whole file in its place
            found[path.stem] = state
    return found
