"""The result store: a folder of runs (cells), each written whole or not at all. Torch-free.

    root/cells/3f/3fa9c1e07b2d4c58/cell.json                        what the run is
                                   rows-<fingerprint>.jsonl         present = complete
                                   outcomes-<fingerprint>.npz       per-example results
                                   environment-<fingerprint>.json   versions and machine
                                   checkpoint-<fingerprint>/        while training, then the weights
    root/claims/<key>                                               which worker executes a run
    root/sweeps/<name>/<key>                                        a run of the sweep: its title
    root/index/rows.json                                            a cache of facts about the rows

The store needs no locks, because a finished file is renamed into its place. So any number of
processes on any number of machines may share a root. The file of rows is written last: if it
exists, all other files of the run exist, too.
The page "Files and columns of the results" of the documentation describes the files.
"""

import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra.conf.system_errors import lexists, persistent
from lra.runners.records import DISTURBED, SCHEMA, Cell, Measurement, Outcomes, Row, Status, row
from lra.runners.storage import atomic
from lra.runners.storage.archives import pack_outcomes, unpack_outcomes
from lra.runners.storage.claims import Claim, clear, living_holders, strangers, take_claim
from lra.runners.storage.formats import (
    BadStore,
    DamagedFile,
    Unreadable,
    cell_folders,
    fingerprint_of,
    pretty,
    read_cell,
    read_newest_rows,
    read_object,
    read_rows_file,
    rows_files,
    rows_text,
    skipping_damaged,
    some,
    without_gc,
)
from lra.runners.storage.holders import Holder
from lra.runners.storage.row_check import BadRow, checked_row
from lra.runners.storage.table import MixedSources, table_of, warn_if_mixed

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "BadStore",
    "MixedSources",
    "Store",
    "UnknownCell",
    "read_outcomes",
    "read_rows",
    "read_rows_file",
    "table_of",
]

_SWEEP_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=,+-]{0,199}")


class UnknownCell(LookupError):
    """A name fits no run, or several; the message lists near matches."""


class Store:
    """One results folder. It is created at the first write."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root)

    # -- where things lie ------------------------------------------------------------------------

    def cell_folder(self, key: str) -> Path:
        """Return the folder of a run, whether it exists or not."""
        return self.root / "cells" / key[:2] / key

    def checkpoint_folder(self, cell: Cell) -> Path:
        """Return the folder for a run's checkpoints; it may not exist."""
        return self.cell_folder(cell.key) / f"checkpoint-{cell.fingerprint}"

    def rows_file(self, key: str, fingerprint: str) -> Path:
        """Return the path of a run's rows for one version of the code; the file may not exist."""
        return self.cell_folder(key) / f"rows-{fingerprint}.jsonl"

    def _rows_file(self, cell: Cell) -> Path:
        """Return the path of a run's rows. Raises ValueError for an impossible fingerprint."""
        if not re.fullmatch(r"[0-9a-z]+", cell.fingerprint):
            raise ValueError(
                "the fingerprint of a stored run consists of digits and lower-case letters: got "
                f"{cell.fingerprint!r}; runners.storage.fingerprint computes it"
            )
        return self.rows_file(cell.key, cell.fingerprint)

    # -- what is there ---------------------------------------------------------------------------

    def complete(
        self, cell: Cell, retry: Collection[str] = (), undone: Mapping[str, str] | None = None
    ) -> bool:
        """Return whether the store has finished rows of this run for this version of the code.

        A run with a damaged rows file is unfinished: it runs again, and `write` renames the file.

        Args:
            cell: the run, with its fingerprint.
            retry: statuses; a run that has a row with one of them is unfinished. If `DISTURBED`
                is among them, a run that has a disturbed row is unfinished, too.
            undone: labels; a run that has a row with all of them is unfinished. None: labels do
                not matter.

        Raises:
            BadStore: a newer version of lra wrote the rows.
            OSError: the file cannot be read now; its rows may be sound.
        """
        path = self._rows_file(cell)
        if not lexists(path):
            return False
        try:
            rows = self.rows_of(cell)
        except DamagedFile:
            return False
        is_undone = undone and any(undone.items() <= row["labels"].items() for row in rows)
        if is_undone or (DISTURBED in retry and any(DISTURBED in row["labels"] for row in rows)):
            return False
        return {row["status"] for row in rows}.isdisjoint(retry)

    def see_anew(self, key: str) -> None:
        """Make a network file system read the listing of the run's folder again.

        Call this right after claiming a run: the process that had the claim before may run on
        another host and may have stored rows a moment ago.
        """
        folder = self.cell_folder(key)
        for path in (folder.parent, folder):
            atomic.refresh(path)

    def rows_of(self, cell: Cell) -> list[Row]:
        """Return the stored rows of a finished run. Raises FileNotFoundError or `BadStore`."""
        return read_rows_file(self._rows_file(cell), cell.key)

    def statuses(self, cell: Cell) -> set[Status]:
        """Return every status among the rows of a finished run."""
        return {Status(stored["status"]) for stored in self.rows_of(cell)}

    def describe(self, key: str) -> dict[str, Any]:
        """Return `cell.json` of a run, with `fingerprint` and `environment` of its newest rows.

        Both are None if the run has no rows yet.

        Raises:
            UnknownCell: there is no such run.
            BadStore: one of its files is damaged.
        """
        folder = self.cell_folder(key)
        description = self.cell(key)
        newest = read_newest_rows(folder)
        if newest is None:
            return {**description, "fingerprint": None, "environment": None}
        rows_file, _ = newest
        fingerprint = fingerprint_of(rows_file)
        environment = read_object(folder / f"environment-{fingerprint}.json")
        return {**description, "fingerprint": fingerprint, "environment": environment}

    def cell(self, key: str) -> dict[str, Any]:
        """Return `cell.json` of a run. Raises `UnknownCell` or `BadStore`."""
        folder = self.cell_folder(key)
        if not lexists(folder / "cell.json") and not rows_files(folder):
            raise UnknownCell(f"there is no finished run {key} in {self.root}")
        return read_cell(folder)

    def find(self, prefix: str) -> str:
        """Return the key of the only run whose key begins with `prefix`.

        Raises:
            UnknownCell: no key begins so, or several do; the message lists near matches.
        """
        keys = [folder.name for folder in cell_folders(self.root, left_out=[])]
        matches = [key for key in keys if key.startswith(prefix)]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise UnknownCell(
                f"the keys of {len(matches)} runs begin with {prefix!r}: {some(matches)}; type "
                "more digits of the key"
            )
        near = get_close_matches(prefix, [key[: len(prefix)] for key in keys], n=5, cutoff=0.5)
        nearest = [key for key in keys if key[: len(prefix)] in near]
        hint = f"near matches: {some(nearest)}" if nearest else f"runs there: {some(keys)}"
        raise UnknownCell(f"no run in {self.root} has a key that begins with {prefix!r}; {hint}")

    def newest(self) -> str:
        """Return the key of the run whose rows were stored last.

        Raises:
            UnknownCell: no run has rows.
        """
        files = [
            file for folder in cell_folders(self.root, left_out=[]) for file in rows_files(folder)
        ]
        if not files:
            raise UnknownCell(f"no run in {self.root} has rows yet")
        return max(files, key=lambda file: (file.stat().st_mtime_ns, file)).parent.name

    # -- writing: only the parent process does ---------------------------------------------------

    def check_writable(self) -> None:
        """Raise `atomic.Unwritable` before any computation if nothing can be written."""
        atomic.check_writable(self.root)

    def write(
        self,
        cell: Cell,
        measurements: Sequence[Measurement],
        outcomes: Sequence[Outcomes],
        environment: Mapping[str, Any],
    ) -> Path:
        """Store a finished or failed run completely, and return the file with its rows.

        Args:
            cell: the run, with its fingerprint.
            measurements: rows of the run, at least one.
            outcomes: per-example results, at most one for each split.
            environment: versions and machine, plain JSON.

        Raises:
            atomic.Unwritable: the disk is full or a right is missing; earlier files are intact.
            ValueError: there is nothing to store, outcomes are out of order, or readers would
                refuse a row; nothing is written.
        """
        if not measurements:
            raise ValueError(
                f"run {cell.key} has no rows: a failed run needs a row that states how it failed"
            )
        target = self._rows_file(cell)
        folder = target.parent
        created = datetime.now(UTC).isoformat(timespec="microseconds")
        rows = [row(cell, measurement, created) for measurement in measurements]
        for number, stored in enumerate(rows, start=1):
            try:
                checked_row(stored)
            except BadRow as error:
                raise ValueError(
                    f"run {cell.key}, row {number}: {error}; lra could not read such a row again"
                ) from error
        description = {
            "schema": SCHEMA,
            "cell": cell.key,
            "identity": cell.identity,
            "described": cell.described,
            "columns": cell.columns,
            "config": cell.config,
            "overrides": list(cell.overrides),
            **({"place": dict(cell.place)} if cell.place else {}),
        }
        outcomes_file = folder / f"outcomes-{cell.fingerprint}.npz"
        environment_file = folder / f"environment-{cell.fingerprint}.json"
        files = {outcomes_file: pack_outcomes(outcomes)} if outcomes else {}
        files[folder / "cell.json"] = pretty(description)
        sources = {"sources": dict(cell.sources)} if cell.sources else {}
        files[environment_file] = pretty({**environment, **sources})
        files[target] = rows_text(rows)  # last: a reader who finds rows finds the other files
        _set_damaged_aside(target, lambda path: read_rows_file(path, cell.key))
        _set_damaged_aside(outcomes_file, unpack_outcomes)
        _set_damaged_aside(folder / "cell.json", lambda path: read_cell(path.parent))
        _set_damaged_aside(environment_file, read_object)
        if not outcomes:
            atomic.remove(outcomes_file)  # it belongs to an earlier attempt at this run
        for path, data in files.items():
            atomic.write_whole(path, data)
        return target

    def claim(self, key: str, *, title: str = "", worker: str = "") -> Claim | None:
        """Claim a run for this worker and return the claim.

        None is returned if another living process has claimed the run.

        Args:
            key: key of the run.
            title: name of the run for people.
            worker: name of the worker that claims it.
        """
        return take_claim(self.root / "claims" / key, title=title, worker=worker)

    def claims(self) -> dict[str, Holder]:
        """Return which process executes each run, by key; it reads one small file for each."""
        return living_holders(self.root / "claims")

    def clear_claims(self, keys: Collection[str]) -> None:
        """Remove the claims on these finished runs, which killed processes left behind."""
        clear(self.root / "claims", keys)

    def strangers(self, *, remove: bool) -> list[str]:
        """Return, and remove if `remove`, claims of a copied folder; see `claims.strangers`."""
        return strangers(self.root / "claims", remove=remove)

    # -- sweeps ----------------------------------------------------------------------------------

    def record_in_sweep(self, name: str, key: str, title: str = "") -> None:
        """Record that a run with this key and title belongs to a sweep (or to one more sweep)."""
        if not _SWEEP_NAME.fullmatch(name):
            raise ValueError(
                f"a sweep name consists of letters, digits and the characters . _ = , + -; "
                f"got {name!r}"
            )
        atomic.record(atomic.make_folder(self.root / "sweeps" / name) / key, title)

    def record_cells(self, name: str, titles: Mapping[str, str]) -> None:
        """Record that runs belong to a sweep. Runs that are already recorded take no time.

        Args:
            name: name of the sweep.
            titles: the title of each run, by the key of the run.
        """
        try:
            recorded = set(persistent(os.listdir, self.root / "sweeps" / name))
        except OSError:
            recorded = set()
        for key, title in titles.items():
            if key not in recorded:
                self.record_in_sweep(name, key, title)

    def take_from_sweep(self, name: str, key: str) -> None:
        """Remove a run from a sweep; its results stay in the store."""
        atomic.remove(self.root / "sweeps" / name / key)

    def sweeps(self) -> list[str]:
        """Return the names of all sweeps."""
        return sorted(path.name for path in (self.root / "sweeps").glob("*") if path.is_dir())

    def cells_of(self, name: str) -> list[str]:
        """Return the keys of a sweep's runs, finished or not. Raises `UnknownCell`."""
        folder = self.root / "sweeps" / name
        if not folder.is_dir() or not _SWEEP_NAME.fullmatch(name):
            names = self.sweeps()
            near = get_close_matches(name, names, n=3)
            hint = f"near matches: {some(near)}" if near else f"sweeps there: {some(names)}"
            raise UnknownCell(f"there is no sweep {name!r} in {self.root}; {hint}")
        return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))

    def unfinished(self, name: str) -> list[str]:
        """Return the titles (or keys) of a sweep's runs without rows. Raises `UnknownCell`."""
        titles = []
        for key in self.cells_of(name):
            if not rows_files(self.cell_folder(key)):
                path, title = self.root / "sweeps" / name / key, ""
                with suppress(OSError):
                    title = path.read_text(encoding="utf-8", errors="replace")
                titles.append(title if title and title.isprintable() else key)
        return sorted(titles)


# -- reading -------------------------------------------------------------------------------------


def read_rows(
    root: Path, sweep: str | None = None, *, left_out: list[BadStore] | None = None
) -> "pd.DataFrame":
    """Return all rows, or those of one sweep, as a table with exactly `COLUMNS`.

    If a run was computed with several versions of the code, only its newest rows are read. Rows are
    ordered by the key of the run; the rows of one run are in the order in which they were measured.

    Args:
        root: the results folder.
        sweep: name of a sweep, or None for all runs.
        left_out: a list to which the error of each unreadable run is added; the table then
            excludes that run. None: the first such error is raised.

    Raises:
        FileNotFoundError: there is no results folder at `root`.
        UnknownCell: there is no such sweep.
        BadStore: a line is incomplete or belongs to another run, or a newer version of lra wrote
            it; the message names file and line. Only raised if `left_out` is None.

    Warns:
        MixedSources: rows of one runner, mode, model and task come from different code.
    """
    root = Path(root)
    if not root.is_dir():
        raise FileNotFoundError(f"there is no results folder {root}; `lra run` creates it")
    store = Store(root)
    folders: list[Path] = []
    with skipping_damaged(left_out):
        if sweep is None:
            folders = cell_folders(root, left_out)
        else:
            folders = [store.cell_folder(key) for key in store.cells_of(sweep)]
    with without_gc():
        table = table_of(_read_newest_of_each(folders, left_out))
        warn_if_mixed(table)
        return table


def _read_newest_of_each(folders: Iterable[Path], left_out: list[BadStore] | None) -> Iterator[Row]:
    """Yield the newest rows of each run, in the order of `folders`.

    A folder without a file of rows belongs to an unfinished run and yields nothing. The error of a
    damaged run is added to `left_out`, or raised if `left_out` is None.
    """
    for folder in folders:
        with skipping_damaged(left_out):
            newest = read_newest_rows(folder)
            if newest is not None:
                _, rows = newest
                yield from rows


def _set_damaged_aside(path: Path, read: Callable[[Path], object]) -> None:
    """Rename the file at `path` if `read` finds it damaged, so that `write` can replace it."""
    if not lexists(path):
        return
    try:
        read(path)
    except Unreadable:  # the system refused to read it, so its content may be sound
        raise
    except BadStore:
        atomic.rename(path, path.with_name(f"damaged-{time.time_ns()}-{path.name}"))


def read_outcomes(root: Path, key: str) -> list[Outcomes]:
    """Return the per-example results that belong to a run's newest rows, ordered by split name.

    The list is empty if the run has stored no such results.

    Raises:
        UnknownCell: the run has no rows.
    """
    folder = Store(root).cell_folder(key)
    newest = read_newest_rows(folder)
    if newest is None:
        raise UnknownCell(f"there is no finished run {key} in {root}")
    rows_file, _ = newest
    path = folder / f"outcomes-{fingerprint_of(rows_file)}.npz"
    if not lexists(path):
        return []
    return unpack_outcomes(path)
