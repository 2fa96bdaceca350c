"""What fills the disk: sweeps, weights, superseded rows, dashboards and data, item by item."""

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from lra.conf.cached_texts import data_root
from lra.runners.storage import writers
from lra.runners.storage.formats import (
    BadStore,
    cell_folders,
    fingerprint_of,
    read_newest_rows,
    rows_files,
)
from lra.runners.store import Store

PARTS = ("sweeps", "plans", "reports", "searches")
"""Folders of the results that hold one folder for each sweep, under its name."""


class Item(NamedTuple):
    """Something on disk that `lra clean` removes as a whole, or leaves as a whole."""

    kind: str
    """One of `KINDS`."""
    name: str
    """Name of the sweep or of the data set; for other kinds, the kind or the program."""
    paths: list[Path]
    """Files and folders, which are removed in this order."""
    cells: list[str]
    """Keys of the cells whose folders these paths are in: no process may be running them."""
    note: str = ""
    """What is removed with it, in a few words."""


def sweeps(results: Path) -> Iterator[Item]:
    """Yield an item for each sweep, with the cells that only this sweep uses.

    The cells that belong to no sweep come last, together in one item.
    """
    store = Store(results)
    # A search that was stopped before its first cell has no list of cells, only its record.
    searches = {path.name for path in results.glob("searches/*") if path.is_dir()}
    members: dict[str, list[str]] = {name: [] for name in sorted(searches)}
    members |= {name: store.cells_of(name) for name in store.sweeps()}
    owners = Counter(key for keys in members.values() for key in keys)
    for name, keys in members.items():
        alone = [key for key in keys if owners[key] == 1]
        folders = [results / part / name for part in PARTS]
        shared = len(keys) - len(alone)
        note = f"{len(alone):,} run{'' if len(alone) == 1 else 's'}" + (
            f"; {shared:,} runs stay, because other sweeps use them" if shared else ""
        )
        # The list of the sweep is removed last: after an interruption, the same command finds
        # the remaining files by its name.
        yield Item("sweeps", name, [*map(store.cell_folder, alone), *folders[::-1]], alone, note)
    single = [folder for folder in cell_folders(results, left_out=[]) if folder.name not in owners]
    if single:
        note = f"{len(single):,} single runs"
        yield Item("sweeps", "(none)", single, [folder.name for folder in single], note)


def weights(results: Path) -> Iterator[Item]:
    """Yield one item with the saved weights and training states of all complete cells."""
    folders = cell_folders(results, left_out=[])
    paths = [
        path
        for folder in folders
        for path in sorted(folder.glob("checkpoint-*"))
        if (folder / f"rows-{path.name.partition('-')[2]}.jsonl").exists()  # it is complete
    ]
    if paths:
        note = (
            "these are weights of finished trainings, and other runs may start from them; rows stay"
        )
        yield Item("weights", "weights", paths, [path.parent.name for path in paths], note)


def old(results: Path) -> Iterator[Item]:
    """Yield one item with the files that no report reads.

    These are the files of rows that an earlier version of the code made, where newer rows exist,
    damaged files, and files that a process which has died left half written.
    """
    paths = []
    for folder in cell_folders(results, left_out=[]):
        newest, complete = None, []  # the newest file with its rows, and all files of rows
        with suppress(BadStore):  # lra doctor --store says what is damaged
            newest, complete = read_newest_rows(folder), rows_files(folder)
        # A checkpoint without rows belongs to an unfinished training, which can be resumed: stays.
        superseded = {fingerprint_of(rows) for rows in complete if newest and rows != newest[0]}
        paths += [
            path
            for path in sorted(folder.iterdir())
            if path.name.startswith(("rows-", "outcomes-", "environment-", "checkpoint-"))
            and path.name.partition("-")[2].partition(".")[0] in superseded
        ]
        paths += sorted(folder.glob("damaged-*"))
    paths += filter(writers.has_died, sorted((results / "cells").glob("**/.*.tmp")))
    if paths:
        note = (
            f"reports do not use these {len(paths):,} files: superseded, damaged or incomplete ones"
        )
        yield Item("old", "old", paths, [path.parent.name for path in paths], note)


def dashboards(results: Path) -> Iterator[Item]:
    """Yield the folders that W&B and TensorBoard have in the results."""
    for name in ("wandb", "tensorboard"):
        if (results / name).is_dir():
            note = "W&B or TensorBoard draws runs from these files; rows, tables and figures stay"
            yield Item("dashboards", name, [results / name], [], note)


def data(results: Path) -> Iterator[Item]:  # noqa: ARG001
    """Yield the prepared data sets in the data folder, wherever the results are.

    `results` is unused: all functions in `KINDS` take it.
    """
    root = data_root()
    for path in sorted(root.iterdir()) if root.is_dir() else ():
        if path.is_dir() and path.name not in ("locks", "hashes") and path.name[0] != ".":
            yield Item(
                "data", path.name, [path], [], "lra prepares these data again when a run needs them"
            )


KINDS: dict[str, Callable[[Path], Iterator[Item]]] = {
    "sweeps": sweeps, "weights": weights, "old": old, "dashboards": dashboards, "data": data,
}  # fmt: skip


def size_of(path: Path) -> int:
    """Return the size in bytes of a file, or the sum over all files below a folder.

    A symbolic link counts with its own few bytes, and what it points to does not count.
    """
    try:
        if path.is_symlink() or not path.is_dir():
            return path.lstat().st_size
        return sum(size_of(Path(entry)) for entry in os.scandir(path))
    except FileNotFoundError:  # another process has removed it since it was listed
        return 0


def remove(path: Path) -> None:
    """Remove a file or a folder.

    A folder is first renamed to a temporary name, so that no process ever finds a half-removed one
    under `path`, even if this process is interrupted.
    """
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    aside = writers.temporary(path)
    path.rename(aside)
    shutil.rmtree(aside)
