"""A cache of summaries of rows files, in a file that may be deleted at any time.

To tell whether a cell is complete, its rows are read and checked: a quarter of a millisecond for
ten rows, and more over a network. For thousands of cells, this cache is faster. Its entry for a
rows file is used only if the file still has the size, the time and the inode number that it had
when it was read; these are asked from the file system each time.

A process that has read many rows files writes the whole index by a rename. If two processes do so,
the later one's index stays, and the other's files are read again. If the index cannot be written,
it is not written.
"""

import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from lra.conf.system_errors import is_fault, lexists, persistent
from lra.runners.records import DISTURBED, LONGEST_REASON, Status
from lra.runners.storage import atomic
from lra.runners.storage.formats import (
    DamagedFile,
    children,
    fingerprint_of,
    read_rows_file,
    rows_files,
    unreadable,
)
from lra.runners.storage.seals import NotSealed, read_sealed, seal

FORMAT = 3
"""3: says what was disturbed. 2: with a digest of itself. 1: without."""
WORTH_WRITING = 50
"""The index is written after at least this many rows files were read."""


class KeyedRows(Protocol):
    """Identifies a rows file by key and fingerprint: a cell, or an entry of a plan's index."""

    @property
    def key(self) -> str:
        """Key of the cell."""
        ...

    @property
    def fingerprint(self) -> str:
        """Fingerprint of its code."""
        ...


class Failure(NamedTuple):
    """A summary of the rows without a value that have the same status and labels."""

    status: Status
    reason: str
    """The reason of the first of these rows, shortened."""
    labels: Mapping[str, str]


class CellSummary(NamedTuple):
    """A summary of one rows file."""

    fingerprint: str
    created: str
    """When it was written: ISO 8601."""
    statuses: frozenset[Status]
    failures: tuple[Failure, ...] = ()
    disturbed: bool = False
    """Whether any row is marked as disturbed."""


class RowsIndex:
    """Summarises the rows files of a store. A context manager that writes the cache at its end.

    Args:
        root: the results folder.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.path = root, root / "index" / "rows.json"
        self._entries: dict[str, Any] | None = None
        self._summaries: dict[str, tuple[list[int], CellSummary]] = {}
        self._new: set[str] = set()

    def summary(self, key: str, fingerprint: str) -> CellSummary | None:
        """Return the summary of a cell's rows file; None if it is absent or damaged.

        Raises:
            BadStore: the rows are of a newer schema, or cannot be read.
        """
        name = f"{key}/{fingerprint}"
        path = f"{self.root}/cells/{key[:2]}/{key}/rows-{fingerprint}.jsonl"
        try:
            status = persistent(os.stat, path)  # with a `Path`, this would take twice as long
        except OSError as error:
            if is_fault(error):
                raise unreadable(Path(path), error) from error
            if not lexists(path):
                return None
            mark = [0, 0, 0]  # a link to nothing: `_read_summary` finds it damaged
        else:
            mark = [status.st_size, status.st_mtime_ns, status.st_ino]
        entry = self._summaries.get(name) or self._stored(name, fingerprint)
        if entry is not None and entry[0] == mark:
            self._summaries[name] = entry
            return entry[1]
        try:
            self._summaries[name] = mark, _read_summary(Path(path), key)
        except DamagedFile:
            return None
        self._new.add(name)
        return self._summaries[name][1]

    def complete(
        self, cell: KeyedRows, retry: Collection[str] = (), undone: Mapping[str, str] | None = None
    ) -> bool:
        """Say whether nothing remains to be done: see `lra.runners.store.Store.complete`.

        Args:
            cell: the cell, with its fingerprint.
            retry: a cell that has a row with one of these statuses is unfinished. With `DISTURBED`,
                so is a cell that has a disturbed row.
            undone: a cell that has a row without a value and with all of these labels is
                unfinished; None: no labels are looked for.

        Raises:
            BadStore: as `summary`.
        """
        summary = self.summary(cell.key, cell.fingerprint)
        if summary is None or not summary.statuses.isdisjoint(retry):
            return False
        if summary.disturbed and DISTURBED in retry:
            return False
        return not undone or not any(
            undone.items() <= failure.labels.items() for failure in summary.failures
        )

    def newest(self, key: str) -> CellSummary | None:
        """Return the summary of a cell's newest undamaged rows file; None if it has none.

        Raises:
            BadStore: as `summary`, or the folder cannot be read.
        """
        names = map(fingerprint_of, rows_files(self.root / "cells" / key[:2] / key))
        summaries = [summary for name in names if (summary := self.summary(key, name)) is not None]
        return max(summaries, key=lambda summary: summary.created, default=None)

    def _stored(self, name: str, fingerprint: str) -> tuple[list[int], CellSummary] | None:
        if self._entries is None:
            self._entries = _stored_entries(self.path)
        try:
            mark, created, statuses, failures, disturbed = self._entries[name]
            return mark, CellSummary(
                fingerprint,
                str(created),
                frozenset(map(Status, statuses)),
                tuple(Failure(Status(s), str(r), dict(labels)) for s, r, labels in failures),
                bool(disturbed),
            )
        except (KeyError, ValueError, TypeError):
            return None

    def write(self) -> None:
        """Write the index where many rows files were read."""
        if len(self._new) < WORTH_WRITING:
            return
        entries = {
            **_stored_entries(self.path),  # of another who has written since
            **{name: _index_entry(*self._summaries[name]) for name in self._new},
        }
        with suppress(OSError):  # without a cache, the next process reads the rows files again
            atomic.write_whole(self.path, seal({"format": FORMAT, "files": entries}))
        self._new.clear()

    def __enter__(self) -> "RowsIndex":
        """Return the index itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Write the index, if enough rows files were read."""
        self.write()


def statuses(root: Path, keys: Iterable[str] | None = None) -> dict[str, CellSummary]:
    """Return summaries of cells' newest rows, by key; cells without undamaged rows are excluded.

    Args:
        root: the results folder.
        keys: keys of the cells; None: all cells of the store.

    Raises:
        BadStore: as `RowsIndex.summary`.
    """
    if keys is None:
        groups = children(root / "cells")
        keys = [cell.name for group in groups for cell in children(group)]
    with RowsIndex(root) as index:
        return {key: summary for key in keys if (summary := index.newest(key)) is not None}


def _read_summary(path: Path, key: str) -> CellSummary:
    """Read a rows file and return its summary. Raises `BadStore`."""
    rows = read_rows_file(path, key)
    failures: dict[tuple[str, str], Failure] = {}
    for row in rows:
        if row["status"] != Status.ok:
            kind = (row["status"], repr(sorted(row["labels"].items())))
            reason = row["reason"][:LONGEST_REASON]
            failures.setdefault(kind, Failure(Status(row["status"]), reason, row["labels"]))
    return CellSummary(
        str(rows[0]["fingerprint"]),
        str(rows[0]["created"]),
        frozenset(Status(row["status"]) for row in rows),
        tuple(failures.values()),
        any(DISTURBED in row["labels"] for row in rows),
    )


def _index_entry(mark: list[int], summary: CellSummary) -> list[Any]:
    failures = [[*failure[:2], dict(failure.labels)] for failure in summary.failures]
    return [mark, summary.created, sorted(summary.statuses), failures, summary.disturbed]


def _stored_entries(path: Path) -> dict[str, Any]:
    """Return the entries of an index file; {} if it is absent, damaged or of another format."""
    try:
        index = read_sealed(path, {"format": int, "files": dict})
    except (OSError, NotSealed):
        return {}
    files: dict[str, Any] = index["files"]
    return files if index["format"] == FORMAT else {}
