"""Audits a results folder: which files are damaged, and which are leftovers. Torch-free."""

import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from lra.runners.storage.archives import check_archive, unpack_outcomes
from lra.runners.storage.atomic import STALE_S
from lra.runners.storage.claims import is_stale
from lra.runners.storage.formats import (
    BadStore,
    children,
    fingerprint_of,
    read_bytes,
    read_cell,
    read_object,
    read_rows_file,
)

_KEY = re.compile(r"[0-9a-f]{16}")
_READERS: tuple[tuple[str, Callable[[Path], object]], ...] = (
    (r"cell\.json", lambda path: read_cell(path.parent)),
    (r"rows-.*\.jsonl", lambda path: read_rows_file(path, path.parent.name)),
    (r"environment-.*\.json", read_object),
    (r"outcomes-.*\.npz", unpack_outcomes),
    (r"log\.txt", read_bytes),
)
"""The function that reads each file of a run, by a pattern of the file's name."""
_Read = TypeVar("_Read")


class Audit(NamedTuple):
    """The result of an audit of a store."""

    cells: int
    damaged: list[str]
    """One sentence for each fault: the file, what is wrong, and what to do."""
    leftovers: list[str]
    """One sentence for each harmless file that a stopped sweep left or that was moved aside."""


def audit(root: Path) -> Audit:
    """Read every file of the results folder `root`, and return what is damaged or left over.

    Raises:
        FileNotFoundError: there is no folder at `root`.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"there is no results folder {root}; `lra run` creates it")
    damaged: list[str] = []
    leftovers: list[str] = []

    def try_read(read: Callable[[Path], _Read], path: Path) -> _Read | None:
        """Return the result of `read`; if it finds damage, add a sentence and return None."""
        try:
            return read(path)
        except BadStore as error:
            damaged.append(str(error))
            return None

    cells = [
        cell
        for group in try_read(children, root / "cells") or ()
        for cell in try_read(children, group) or ()
    ]
    for cell in cells:
        if not _KEY.fullmatch(cell.name) or cell.parent.name != cell.name[:2]:
            damaged.append(
                f"{cell}: this folder of a run is at a wrong place; move it to a path like "
                "`cells/3f/3fa9…`"
            )
            continue
        files = try_read(children, cell) or []
        for path in files:
            _check_file(path, try_read, damaged, leftovers)
        damaged += _find_missing(files)
    for sweep in try_read(children, root / "sweeps") or ():
        names = [path.name for path in try_read(children, sweep) or ()]
        damaged += [
            f"{sweep / name}: this name is not the key of a run; remove it"
            for name in names
            if not _KEY.fullmatch(name)
        ]
        absent = [name for name in names if not (root / "cells" / name[:2] / name).is_dir()]
        if absent:
            leftovers.append(
                f"{sweep}: {len(absent)} of {len(names)} runs have no results, for example "
                f"{absent[0]}, because they were deleted or not started; rerun the sweep"
            )
    for path in try_read(children, root / "claims") or ():
        if path.name.startswith(".") or try_read(read_bytes, path) is None:
            continue  # a temporary file, or a damaged claim, which is now in `damaged`
        if is_stale(path):
            leftovers.append(
                f"{path}: the process of this run has ended; rerunning the sweep starts it again"
            )
    leftovers += _find_abandoned_files(root)
    return Audit(len(cells), damaged, leftovers)


def _check_file(
    path: Path, try_read: Callable[..., object], damaged: list[str], leftovers: list[str]
) -> None:
    """Read one file of a cell, and add a sentence to `damaged` or `leftovers` if it needs one.

    Args:
        path: the file, or a folder of checkpoints.
        try_read: function that calls a reader with a path, and records the damage that it finds.
        damaged: list of sentences about damaged and unknown files.
        leftovers: list of sentences about files that lra moved aside.
    """
    read = next((read for name, read in _READERS if re.fullmatch(name, path.name)), None)
    if read is not None:
        try_read(read, path)
    elif path.name.startswith("checkpoint-") and path.is_dir():
        for state in path.glob("*.pt"):
            try_read(check_archive, state)
    elif path.name.startswith("damaged-"):
        leftovers.append(
            f"{path}: lra moved this file aside because it was damaged; you can remove it"
        )
    else:
        damaged.append(f"{path}: this file does not belong to a run; move it away")


def _find_missing(files: list[Path]) -> list[str]:
    """Return a sentence for each missing file that a rows file among the `files` of a run needs."""
    names = {path.name for path in files}
    rows = [path for path in files if re.fullmatch(r"rows-.*\.jsonl", path.name)]
    return [
        f"{path.with_name(name)}: this file is missing next to {path.name}; move {path.name} "
        "away, then rerun the sweep"
        for path in rows
        for name in ("cell.json", f"environment-{fingerprint_of(path)}.json")
        if name not in names
    ]


def _find_abandoned_files(root: Path) -> list[str]:
    """Return a sentence for each temporary file whose writer was killed."""
    oldest, leftovers = time.time() - STALE_S, []
    for path in sorted(root.glob("**/.*.tmp")):
        with suppress(FileNotFoundError):  # its writer has just finished and renamed it
            if path.lstat().st_mtime < oldest:
                leftovers.append(f"{path}: a process that was killed left this file; remove it")
    return leftovers
