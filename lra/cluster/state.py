"""The state of a worker in a file, which `lra watch` reads; only rows and claims are binding."""

import os
import socket
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lra.conf.plain_files import NoJson, Types, typed_object
from lra.runners.isolation.progress import Progress
from lra.runners.storage.atomic import make_folder
from lra.runners.storage.holders import Holder, alive, process_place, process_start
from lra.runners.storage.homes import Home
from lra.runners.storage.seals import NotSealed, read_sealed, seal

EVERY_S = 10.0
"""Seconds between two writings while a cell makes progress."""
_NUMBER, _NONE = (float, int), type(None)
_STATE: Types = {
    "worker": str, "host": str, "doing": str, "cells": dict, "endings": dict, "at": _NUMBER,
}  # fmt: skip
_CELL: Types = {
    "title": str, "since": _NUMBER, "phase": (str, _NONE), "done": (int, _NONE),
    "total": (int, _NONE), "left_s": (*_NUMBER, _NONE),
}  # fmt: skip


class WorkerState:
    """Writes the file of one worker when a cell begins or ends, and from time to time."""

    def __init__(self, folder: Path, name: str, group: str) -> None:
        """Take the folder of a plan, the name of a worker, and the name of its group ("": none)."""
        self.path = make_folder(folder / "workers") / f"{name}.json"
        self.about: dict[str, Any] = {
            "worker": name,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": process_start(),
            "place": process_place(),
            "group": group,
            "since": time.time(),
            "home": Home.from_folder(folder).plain(),
        }
        self.doing, self.why = "starting", ""
        self.cells: dict[str, dict[str, Any]] = {}
        self.endings: Counter[str] = Counter()
        self._written = 0.0

    def begin(self, key: str, title: str) -> None:
        """Record that a cell begins."""
        self.doing = "running"
        self.cells[key] = {"title": title, "since": time.time()}
        self.write()

    def advance(self, key: str, message: Progress) -> None:
        """Record the progress of a cell; written at most every `EVERY_S` seconds."""
        if (cell := self.cells.get(key)) is None:
            return
        cell |= {"phase": message.phase, "done": message.done, "total": message.total}
        cell["left_s"] = message.left_s
        if time.monotonic() - self._written >= EVERY_S:
            self.write()

    def end(self, key: str, status: str) -> None:
        """Record how a cell ended."""
        self.cells.pop(key, None)
        self.endings[status] += 1
        self.write()

    def say(self, doing: str) -> None:
        """Record what the worker does while it runs no cell."""
        if doing != self.doing or time.monotonic() - self._written >= EVERY_S:
            self.doing = doing
            self.write()

    def over(self, code: int, why: str) -> None:
        """Record the exit code of the worker, and the reason if it is an error (else "")."""
        self.doing, self.why = f"ended with {code}", why
        self.write(last=True)

    def write(self, *, last: bool = False) -> None:
        """Write the file; an error is ignored, because it must not stop the worker.

        Args:
            last: whether this is the last state; on a full disk, it overwrites the one before.
        """
        self._written = time.monotonic()
        content = {
            **self.about,
            "doing": self.doing,
            **({"why": self.why} if self.why else {}),
            "cells": self.cells,
            "endings": dict(self.endings),
            "at": time.time(),
        }
        aside = self.path.with_name(f".{self.path.name}.tmp")
        try:
            aside.write_bytes(seal(content))
            aside.replace(self.path)
        except OSError:
            with suppress(OSError):
                aside.unlink(missing_ok=True)
            if last:
                self._overwrite(seal(content))

    def _overwrite(self, raw: bytes) -> None:
        """Write into the existing blocks of the file, which may damage it."""
        with suppress(OSError), self.path.open("r+b") as file:
            file.write(raw)
            file.truncate()


def is_killed(state: Mapping[str, Any]) -> bool:
    """Return whether a worker was killed; False as well if this machine cannot find out."""
    pid, started = state.get("pid"), state.get("started")
    if is_over(state) or type(pid) is not int or pid < 1:
        return False
    start = started if type(started) is int else None
    return alive(Holder(state["host"], pid, start, str(state.get("place", "")))) is False


def is_over(state: Mapping[str, Any]) -> bool:
    """Return whether a worker has recorded how it ended."""
    return str(state["doing"]).startswith("ended")


def read_states(folder: Path) -> dict[str, Mapping[str, Any]]:
    """Return the last states that the workers of a plan wrote, by their names.

    Damaged files are excluded: an active worker soon writes its file again.
    """
    states: dict[str, Mapping[str, Any]] = {}
    for path in sorted((folder / "workers").glob("*.json")):
        try:
            state = read_sealed(path, _STATE)
            for cell in state["cells"].values():
                typed_object(cell, _CELL)
        except (OSError, NotSealed, NoJson):
            continue
        if state.get("worker") == path.stem:  # else another whole file in its place
            states[path.stem] = state
    return states
