"""The result store: a folder of cells, each written whole or not at all. Torch-free.

    root/cells/3f/3fa9c1e07b2d4c58/cell.json                        what the cell is
                                   rows-<fingerprint>.jsonl         present = complete
                                   outcomes-<fingerprint>.npz       per-example results
                                   environment-<fingerprint>.json   versions and machine
                                   checkpoint-<fingerprint>/        while training, then the weights
    root/claims/<cell>                                              advisory
    root/sweeps/<name>/<cell>                                       its cells: what each is called
    root/index/rows.json                                            what rows say in short: a cache

No locks: correctness rests on the rename of finished files, so any number of processes on any
number of machines may share a root. Rows come last; whoever sees them sees everything else.
The page "Files and columns of the results" of the documentation describes each.
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
        """Return the file of a run's rows for the code with a fingerprint; it may not exist."""
        return self.cell_folder(key) / f"rows-{fingerprint}.jsonl"

    def _rows_file(self, cell: Cell) -> Path:
        """Return the file for a cell's rows. Raises ValueError for an impossible fingerprint."""
        if not re.fullmatch(r"[0-9a-z]+", cell.fingerprint):
            raise ValueError(
                "a stored run needs a fingerprint of digits and lower-case letters: got "
                f"{cell.fingerprint!r}; see runners.storage.fingerprint"
            )
        return self.rows_file(cell.key, cell.fingerprint)

    # -- what is there ---------------------------------------------------------------------------

    def complete(
        self, cell: Cell, retry: Collection[str] = (), undone: Mapping[str, str] | None = None
    ) -> bool:
        """Say whether this run is finished with this code.

        A cell with a damaged rows file is unfinished: it runs again, and `write` sets the file
        aside.

        Args:
            cell: the cell, with its fingerprint.
            retry: a cell that has a row with one of these statuses is unfinished. With `DISTURBED`,
                so is a cell that has a disturbed row.
            undone: a cell that has a row with all of these labels is unfinished; None: no labels
                are looked for.

        Raises:
            BadStore: the rows are of a newer schema.
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
        """Make a network file system look at the run's folder again.

        Call this right after claiming a cell: the process that held the claim before, maybe on
        another host, may have stored rows a moment ago.
        """
        folder = self.cell_folder(key)
        for path in (folder.parent, folder):
            atomic.refresh(path)

    def rows_of(self, cell: Cell) -> list[Row]:
        """Return the stored rows of a finished run. Raises FileNotFoundError or `BadStore`."""
        return read_rows_file(self._rows_file(cell), cell.key)

    def statuses(self, cell: Cell) -> set[Status]:
        """Return every status among the rows of a finished run."""
        return {Status(one["status"]) for one in self.rows_of(cell)}

    def describe(self, key: str) -> dict[str, Any]:
        """Return `cell.json` of a run, with `fingerprint` and `environment` of its newest rows.

        Both are None where the cell has no rows yet.

        Raises:
            UnknownCell: no such cell.
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
            raise UnknownCell(f"no finished run {key} in {self.root}")
        return read_cell(folder)

    def find(self, prefix: str) -> str:
        """Return the key of the only run whose key begins with `prefix`.

        Raises:
            UnknownCell: none or several; the message lists near matches.
        """
        keys = [folder.name for folder in cell_folders(self.root, left_out=[])]
        matches = [key for key in keys if key.startswith(prefix)]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise UnknownCell(
                f"{prefix!r} is the beginning of {len(matches)} runs: {some(matches)}; type more "
                "digits of the key"
            )
        near = get_close_matches(prefix, [key[: len(prefix)] for key in keys], n=5, cutoff=0.5)
        nearest = [key for key in keys if key[: len(prefix)] in near]
        hint = f"near matches: {some(nearest)}" if nearest else f"runs there: {some(keys)}"
        raise UnknownCell(f"no run in {self.root} begins with {prefix!r}; {hint}")

    def newest(self) -> str:
        """Return the key of the run whose rows were stored last.

        Raises:
            UnknownCell: no cell has rows.
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
            cell: the cell, with its fingerprint.
            measurements: its rows, at least one.
            outcomes: per-example results, at most one for each split.
            environment: versions and machine, plain JSON.

        Raises:
            atomic.Unwritable: full disk, missing right; what was stored before is untouched.
            ValueError: nothing to store, outcomes out of order, or a row that readers would
                refuse; nothing is written.
        """
        if not measurements:
            raise ValueError(f"run {cell.key} has no rows: a failed run needs one with its status")
        target = self._rows_file(cell)
        folder = target.parent
        created = datetime.now(UTC).isoformat(timespec="microseconds")
        rows = [row(cell, measurement, created) for measurement in measurements]
        for number, stored in enumerate(rows, start=1):
            try:
                checked_row(stored)
            except BadRow as error:
                raise ValueError(
                    f"run {cell.key}, row {number}: {error}; it could not be read again"
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
        results = folder / f"outcomes-{cell.fingerprint}.npz"
        about = folder / f"environment-{cell.fingerprint}.json"
        files = {results: pack_outcomes(outcomes)} if outcomes else {}
        files[folder / "cell.json"] = pretty(description)
        sources = {"sources": dict(cell.sources)} if cell.sources else {}
        files[about] = pretty({**environment, **sources})
        files[target] = rows_text(rows)  # last: a reader who finds rows finds the other files
        _set_aside(target, lambda path: read_rows_file(path, cell.key))
        _set_aside(results, unpack_outcomes)
        _set_aside(folder / "cell.json", lambda path: read_cell(path.parent))
        _set_aside(about, read_object)
        if not outcomes:
            atomic.remove(results)  # outcomes of an earlier attempt at this cell
        for path, data in files.items():
            atomic.write_whole(path, data)
        return target

    def claim(self, key: str, *, title: str = "", worker: str = "") -> Claim | None:
        """Claim a run for this worker; None if another living process has claimed it.

        Args:
            key: key of the cell.
            title: name of the cell for people.
            worker: name of the worker that claims it.
        """
        return take_claim(self.root / "claims" / key, title=title, worker=worker)

    def claims(self) -> dict[str, Holder]:
        """Return who works on which runs now, by key. It reads one listing and a file for each."""
        return living_holders(self.root / "claims")

    def clear_claims(self, keys: Collection[str]) -> None:
        """Remove claims that killed processes left on finished runs."""
        clear(self.root / "claims", keys)

    def strangers(self, *, remove: bool) -> list[str]:
        """Return, and maybe remove, claims that a copied folder brought: see `claims.strangers`."""
        return strangers(self.root / "claims", remove=remove)

    # -- sweeps ----------------------------------------------------------------------------------

    def record_in_sweep(self, name: str, key: str, title: str = "") -> None:
        """Note that a run with a title belongs to a sweep; it may belong to several."""
        if not _SWEEP_NAME.fullmatch(name):
            raise ValueError(
                f"a sweep name is made of letters, digits and . _ = , + -: got {name!r}"
            )
        atomic.record(atomic.make_folder(self.root / "sweeps" / name) / key, title)

    def record_cells(self, name: str, titles: Mapping[str, str]) -> None:
        """Note that runs belong to a sweep; those already noted there take no time.

        Args:
            name: the sweep.
            titles: the title of each run, by key.
        """
        try:
            recorded = set(persistent(os.listdir, self.root / "sweeps" / name))
        except OSError:
            recorded = set()
        for key, title in titles.items():
            if key not in recorded:
                self.record_in_sweep(name, key, title)

    def take_from_sweep(self, name: str, key: str) -> None:
        """Note that a run no longer belongs to a sweep; its results stay in the store."""
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
            raise UnknownCell(f"no sweep {name!r} in {self.root}; {hint}")
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

    Of a cell that was computed with several versions of the code, the newest rows count. Rows come
    in the order of cell keys, and within a cell as its runner gave them.

    Args:
        root: the results folder.
        sweep: name of a sweep, or None for every cell.
        left_out: a list to which the error of each unreadable cell is added; the table then
            excludes that cell. None: the first such error is raised.

    Raises:
        FileNotFoundError: no results folder at `root`.
        UnknownCell: no such sweep.
        BadStore: a torn or foreign line, or rows of a newer schema; names file and line. Only
            raised if `left_out` is None.

    Warns:
        MixedSources: rows of one runner, mode, model and task come from different code.
    """
    root = Path(root)
    if not root.is_dir():
        raise FileNotFoundError(f"no results folder {root}; `lra run` creates it")
    store = Store(root)
    folders: list[Path] = []
    with skipping_damaged(left_out):
        if sweep is None:
            folders = cell_folders(root, left_out)
        else:
            folders = [store.cell_folder(key) for key in store.cells_of(sweep)]
    with without_gc():
        table = table_of(_newest_rows(folders, left_out))
        warn_if_mixed(table)
        return table


def _newest_rows(folders: Iterable[Path], left_out: list[BadStore] | None) -> Iterator[Row]:
    """Yield the newest rows of each cell, in the order of the cells' folders.

    A folder without a file of rows belongs to an unfinished cell and yields nothing. The errors of
    damaged cells are handled as in `read_rows`: added to `left_out`, or raised if it is None.
    """
    for folder in folders:
        with skipping_damaged(left_out):
            newest = read_newest_rows(folder)
            if newest is not None:
                _, rows = newest
                yield from rows


def _set_aside(path: Path, read: Callable[[Path], object]) -> None:
    """Rename the file at `path` if `read` finds it damaged, because `write` will replace it."""
    if not lexists(path):
        return
    try:
        read(path)
    except Unreadable:  # the system refused to read it, so its content may be sound
        raise
    except BadStore:
        atomic.rename(path, path.with_name(f"damaged-{time.time_ns()}-{path.name}"))


def read_outcomes(root: Path, key: str) -> list[Outcomes]:
    """Return the per-example results of a run's newest rows, by split name.

    Raises `UnknownCell` where the cell has no rows; a cell without outcomes gives an empty list.
    """
    folder = Store(root).cell_folder(key)
    newest = read_newest_rows(folder)
    if newest is None:
        raise UnknownCell(f"no finished run {key} in {root}")
    rows_file, _ = newest
    path = folder / f"outcomes-{fingerprint_of(rows_file)}.npz"
    if not lexists(path):
        return []
    return unpack_outcomes(path)
