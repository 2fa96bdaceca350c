"""Which runs were written before: a file for each, so that processes do not disturb each other."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from filelock import FileLock, Timeout

from lra.conf.plain_files import NoFile, Types, read_json, typed

_FOLDER = "mirrored"
RUN, REPORT = "run", "report"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirrored:
    """One run that was written."""

    content: str
    """Hash of everything in it."""
    path: str
    """Its folder."""
    mode: str
    sweep: str
    kind: str
    """`RUN` or `REPORT`."""
    cells: Mapping[str, str]
    """The cells in it, and a hash of the rows of each; "" where it has not ended."""
    live: bool = False
    """Whether it was written while its cells ran, and so holds more than their rows."""
    group: str = ""
    """What the cells of a live run have in common: see `lra.reports.dashboard.describe.group`."""


_TYPES: Types = {
    "content": str, "path": str, "mode": str, "sweep": str, "kind": str, "cells": dict,
}  # fmt: skip


def read_state(folder: Path) -> dict[str, Mirrored]:
    """Return what was written below `folder`, by run id.

    What cannot be read counts as never written: its cells are written again, and nothing is lost.
    """
    return StateFiles(folder).now()


class StateFiles:
    """What was written below a folder, read again where a file has changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / _FOLDER
        self._read: dict[str, tuple[int, int, Mirrored | None]] = {}

    def of(self, run: str) -> Mirrored | None:
        """Return one run, without a look at the others."""
        try:
            return _parsed(self._folder / f"{run}.json")
        except OSError:
            return None

    def now(self) -> dict[str, Mirrored]:
        """Return every run by its id."""
        seen = {}
        for file in sorted(self._folder.glob("*.json")):
            try:
                about = file.stat()
                entry = self._read.get(file.stem)
                if entry is None or entry[:2] != (about.st_mtime_ns, about.st_ino):
                    entry = (about.st_mtime_ns, about.st_ino, _parsed(file))
            except OSError:
                continue
            seen[file.stem] = entry
        self._read = seen
        return {run: was for run, (_, _, was) in seen.items() if was is not None}


def _parsed(file: Path) -> Mirrored | None:
    """Return what a file says; None for one of a folder that was copied or moved here.

    A run outside our folder is another's, or what a stranger's store wants written or removed.
    """
    folder = file.parent.parent
    try:
        content = typed(read_json(file), _TYPES)
        typed(content["cells"], dict.fromkeys(content["cells"], str))
        mirrored = Mirrored(**content)
        path = folder / mirrored.path
        inside = folder.resolve() in path.resolve().parents
    except (NoFile, ValueError, TypeError):
        return None
    return replace(mirrored, path=str(path)) if inside else None


def write_state(folder: Path, run: str, mirrored: Mirrored) -> None:
    """Remember one run, by a path that holds in a copy of the folder as well."""
    (folder / _FOLDER).mkdir(parents=True, exist_ok=True)
    path, root = Path(mirrored.path).resolve(), folder.resolve()
    if path.is_relative_to(root):
        mirrored = replace(mirrored, path=str(path.relative_to(root)))
    draft = folder / _FOLDER / f".{run}.new"
    draft.write_text(json.dumps(asdict(mirrored), indent=1, sort_keys=True) + "\n")
    draft.replace(folder / _FOLDER / f"{run}.json")


def taken(folder: Path, run: str) -> FileLock | None:
    """Take a run for this process until it ends; None where another one is writing it."""
    (folder / _FOLDER).mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / _FOLDER / f"{run}.lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return None
    return lock


def being_written(folder: Path, sweep: str) -> set[str]:
    """Return the cells of a sweep whose runs another process has not ended yet."""
    cells: set[str] = set()
    for run, was in read_state(folder).items():
        if was.sweep != sweep or was.kind != RUN or all(was.cells.values()):
            continue
        try:
            lock = taken(folder, run)
        except OSError:  # a file system without locks: nobody can have it
            continue
        if lock is None:
            cells |= was.cells.keys()
        else:
            lock.release()
    return cells


def forget_files(run: str, keep: Path) -> None:
    """Remove offline files of the same run: a later version replaces, an unfinished one lies."""
    for old in keep.parent.glob(f"*run-*-{run}"):
        if old != keep:
            shutil.rmtree(old)


def forget_older_reports(folder: Path, state: dict[str, Mirrored], new: str) -> None:
    """Remove the offline reports of the sweep that show nothing but what the new one shows."""
    cells = state[new].cells.keys()
    for run, was in list(state.items()):
        same = was.kind == REPORT and was.sweep == state[new].sweep
        if run == new or not same or was.mode != "offline" or not was.cells.keys() <= cells:
            continue
        for path in (Path(was.path), folder / "rows" / run, folder / "data" / run):
            shutil.rmtree(path, ignore_errors=True)
        (folder / _FOLDER / f"{run}.json").unlink(missing_ok=True)
        del state[run]
