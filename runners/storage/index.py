"""A cache of summaries of rows files, in a file that may be deleted at any time.

To decide whether a run is finished, its rows must be read and checked, which takes a quarter of a
millisecond for ten rows, and longer over a network. For thousands of runs, this cache is faster. An
entry is used only if the rows file still has the size, time and inode number of its last reading.

A process that has read many rows files writes the whole index by a rename. If two processes do so,
the later index remains, and the entries of the other are computed again. If the index cannot be
written, nothing is lost.
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
"""Version of the file; indexes of other versions are ignored."""
WORTH_WRITING = 50
"""The index is written after at least so many rows files were read."""


class KeyedRows(Protocol):
    """Identifies a rows file by key and fingerprint; for example, a `Cell` does."""

    @property
    def key(self) -> str:
        """Return the key of the run."""
        ...

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the code of the run."""
        ...


class Failure(NamedTuple):
    """A summary of all rows without a value that have the same status and labels."""

    status: Status
    reason: str
    """The reason of the first of these rows, shortened."""
    labels: Mapping[str, str]


class CellSummary(NamedTuple):
    """A summary of one rows file."""

    fingerprint: str
    created: str
    """When the file was written, in ISO 8601."""
    statuses: frozenset[Status]
    failures: tuple[Failure, ...] = ()
    disturbed: bool = False
    """Whether any row is marked as disturbed."""


class RowsIndex:
    """Summarises the rows files of a store; as a context manager, it writes the cache at the end.

    Args:
        root: the results folder.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.path = root, root / "index" / "rows.json"
        # The stored index (None: not yet loaded); by `key/fingerprint`, version (size, time, inode
        # number) and summary of the files that were asked for; the names of those to be stored.
        self._entries: dict[str, Any] | None = None
        self._summaries: dict[str, tuple[list[int], CellSummary]] = {}
        self._new: set[str] = set()

    def summary(self, key: str, fingerprint: str) -> CellSummary | None:
        """Return the summary of the rows file of a run; None if the file is absent or damaged.

        Raises:
            BadStore: a newer version of lra wrote the rows, or they cannot be read.
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
            version = [0, 0, 0]  # a link to nothing, which `_read_summary` finds damaged
        else:
            version = [status.st_size, status.st_mtime_ns, status.st_ino]
        entry = self._summaries.get(name) or self._load_entry(name, fingerprint)
        if entry is not None:
            known_version, known_summary = entry
            if known_version == version:
                self._summaries[name] = entry
                return known_summary
        try:
            new_summary = _read_summary(Path(path), key)
        except DamagedFile:
            return None
        self._summaries[name] = version, new_summary
        self._new.add(name)
        return new_summary

    def complete(
        self, cell: KeyedRows, retry: Collection[str] = (), undone: Mapping[str, str] | None = None
    ) -> bool:
        """Return whether a run is finished, like `lra.runners.store.Store.complete`.

        Args:
            cell: the run, with its fingerprint.
            retry: a run that has a row with one of these statuses is unfinished. If `DISTURBED` is
                among them, a run that has a disturbed row is unfinished, too.
            undone: a run that has a row without a value and with all of these labels is
                unfinished; None: labels do not matter.

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
        """Return the summary of the newest undamaged rows file of a run; None if there is none.

        Raises:
            BadStore: as `summary`, or the folder cannot be read.
        """
        names = map(fingerprint_of, rows_files(self.root / "cells" / key[:2] / key))
        summaries = [summary for name in names if (summary := self.summary(key, name)) is not None]
        return max(summaries, key=lambda summary: summary.created, default=None)

    def _load_entry(self, name: str, fingerprint: str) -> tuple[list[int], CellSummary] | None:
        """Return the entry of a rows file in the stored index; None if it is absent or invalid."""
        if self._entries is None:
            self._entries = _load_entries(self.path)
        try:
            version, created, statuses, failures, disturbed = self._entries[name]
            return version, CellSummary(
                fingerprint,
                str(created),
                frozenset(map(Status, statuses)),
                tuple(Failure(Status(s), str(r), dict(labels)) for s, r, labels in failures),
                bool(disturbed),
            )
        except (KeyError, ValueError, TypeError):
            return None

    def write(self) -> None:
        """Write the index if many rows files were read."""
        if len(self._new) < WORTH_WRITING:
            return
        entries = {
            **_load_entries(self.path),  # another process may have written it meanwhile
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
    """Return the summary of each run's newest rows, by key; runs without valid rows are excluded.

    Args:
        root: the results folder.
        keys: keys of the runs; None: all runs of the store.

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
    """Return the JSON of an entry, as `_load_entry` reads it; `mark` is the file's version."""
    failures = [[*failure[:2], dict(failure.labels)] for failure in summary.failures]
    return [mark, summary.created, sorted(summary.statuses), failures, summary.disturbed]


def _load_entries(path: Path) -> dict[str, Any]:
    """Return the entries of an index file; {} if it is absent, damaged or of another format."""
    try:
        index = read_sealed(path, {"format": int, "files": dict})
    except (OSError, NotSealed):
        return {}
    files: dict[str, Any] = index["files"]
    return files if index["format"] == FORMAT else {}
