"""The stored plan of a sweep: what workers need to run its cells, read as they go.

    results/plans/<sweep>/plan.json                 the head: which files count, and for whom
                          index-<digest>.json       what is known of each cell unread
                          cells-<digest>.jsonl      the cells; what several share stands there once
                          workers/<worker>.json     what each worker does
                          logs/<worker>.log         what it has said
                          submissions/<time>.json   what was started, and by which engine

A head is replaced whole, after the files that it names: a reader sees the plan of before or the new
one. Files of the plan before stay for the workers that have them open.
"""

import hashlib
import json
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from lra.cluster.engine import Resources, WorkerGroup
from lra.compose import Control, Logger
from lra.suggest import near
from runners.records import Cell

SCHEMA = 1
FOLDER = "plans"
HEAD = "plan.json"
PARTED = ("config", "described")
"""Fields of a cell that are stored by parts, which others may share."""


class BadPlan(ValueError):
    """A stored plan that cannot be used; the message says why and what to do."""


class PlanEntry(NamedTuple):
    """What the index says of a cell."""

    key: str
    fingerprint: str
    runner: str
    turn: int
    """When a sweep runs it: see `lra.sweep.cell_list`."""
    timed: bool
    needs: Resources
    trainings: tuple[int, ...]
    """Places in the index of the cells that it starts from."""
    shorter: int | None
    """The next shorter length of its curve, which is tried before."""
    data: str
    """What data it needs, which are made ready once; "" for none."""
    offset: int
    size: int


class StoredPlan:
    """A plan as a worker sees it; cells are read when they are asked for."""

    def __init__(self, folder: Path) -> None:
        """Open the plan of a folder.

        Raises:
            BadPlan: there is none, it is torn, or of another schema.
        """
        self.folder = folder
        self.head = _head(folder)
        self.version = str(self.head["cells"])
        self.sweep, self.root = str(self.head["sweep"]), results_of(folder)
        try:
            self._file = os.open(folder / self.head["cells"], os.O_RDONLY | os.O_CLOEXEC)
            self._closed = weakref.finalize(self, os.close, self._file)
            raw = (folder / self.head["index"]).read_bytes()
        except FileNotFoundError as error:
            raise BadPlan(f"{error.filename} is gone: {SUBMIT_AGAIN}") from error
        size = os.fstat(self._file).st_size
        if size != self.head["bytes"] or digest_of(raw) != self.head["index_digest"]:
            raise BadPlan(f"the plan in {folder} is torn: {SUBMIT_AGAIN}")
        index = json.loads(raw)
        needs = [Resources(**each) for each in index["needs"]]
        self.entries = [_entry(each, index, needs) for each in index["entries"]]
        self._parts: dict[int, Any] = {}

    @cached_property
    def places(self) -> dict[str, int]:
        """The place of each cell in the index, by key."""
        return {entry.key: place for place, entry in enumerate(self.entries)}

    @cached_property
    def control(self) -> Control:
        """What steers the sweep."""
        return Control(**self.head["control"])

    @cached_property
    def logger(self) -> Logger:
        """The dashboard of the sweep."""
        from lra.binding import make

        logger: Logger = make(Logger, self.head["logger"], "logger")
        return logger

    @cached_property
    def groups(self) -> list[WorkerGroup]:
        """The kinds of workers that were asked for, the last ones first."""
        return [
            WorkerGroup(
                name=each["name"],
                count=each["count"],
                resources=Resources(**each["resources"]),
                timed=each.get("timed"),
            )
            for each in self.head["groups"]
        ]

    def title(self, place: int) -> str:
        """Return what a cell is called."""
        return str(self._stored(place)["title"])

    def cell(self, place: int) -> Cell:
        """Return the cell at a place of the index."""
        return cell_of(self.record(place))

    def record(self, place: int) -> dict[str, Any]:
        """Return all that is stored of a cell, its parts put together. Nothing may change them."""
        found = dict(self._stored(place))
        for name in PARTED:
            whole, parts = found[name]
            found[name] = {**whole, **{key: self._part(*at) for key, at in parts.items()}}
        found["sources"] = self._part(*found["sources"])
        return found

    def _stored(self, place: int) -> dict[str, Any]:
        entry = self.entries[place]
        found: dict[str, Any] = self._read(entry.offset, entry.size)
        if found.get("key") != entry.key:
            raise BadPlan(f"the plan in {self.folder} is torn at {entry.key}: {SUBMIT_AGAIN}")
        return found

    def _part(self, offset: int, size: int) -> Any:
        if offset not in self._parts:
            self._parts[offset] = self._read(offset, size)
        return self._parts[offset]

    def _read(self, offset: int, size: int) -> Any:
        try:
            return json.loads(os.pread(self._file, size, offset))
        except ValueError as error:
            raise BadPlan(f"the plan in {self.folder} is torn: {SUBMIT_AGAIN}") from error

    def close(self) -> None:
        """Close the file."""
        self._closed()


class PlanTitles(Mapping[str, str]):
    """What the cells of a plan are called, by key, read when they are asked for."""

    def __init__(self, plan: StoredPlan) -> None:
        self.plan = plan

    def __getitem__(self, key: str) -> str:
        """Return the name of a cell."""
        return self.plan.title(self.plan.places[key])

    def __iter__(self) -> Iterator[str]:
        """Iterate over the keys."""
        return iter(self.plan.places)

    def __len__(self) -> int:
        """Return the number of cells."""
        return len(self.plan.entries)


SUBMIT_AGAIN = "give the `lra submit` command again, which writes it anew; results stay"


def plan_folder(root: Path, sweep: str) -> Path:
    """Return the folder of a sweep's plan, present or not."""
    return root / FOLDER / sweep


def results_of(folder: Path) -> Path:
    """Return the results folder that a plan's folder is in."""
    return folder.parent.parent


def found(name: str, root: Path) -> Path:
    """Return the folder of a plan that is given by its path, or by the name of its sweep.

    Raises:
        BadPlan: there is none; with near matches.
    """
    for folder in (Path(name), plan_folder(root, name)):
        if (folder / HEAD).is_file():
            return folder.resolve() if folder.is_absolute() else folder
    if "/" in name:
        raise BadPlan(f"no plan in {name}: wanted a folder with {HEAD}, or the name of a sweep")
    known = sorted(path.parent.name for path in (root / FOLDER).glob(f"*/{HEAD}"))
    close = near(name, known)
    hint = f"near matches: {', '.join(close)}" if close else f"plans there: {_some(known)}"
    raise BadPlan(
        f"no plan of a sweep {name!r} in {root}; {hint}. `lra submit sweep={name} …` writes one; "
        "another results folder is named by --results"
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (" …" if len(names) > 10 else "") if names else "none"


def _head(folder: Path) -> dict[str, Any]:
    try:
        head = json.loads((folder / HEAD).read_bytes())
    except FileNotFoundError as error:
        raise BadPlan(f"no plan in {folder}: {SUBMIT_AGAIN}") from error
    except ValueError as error:
        raise BadPlan(f"{folder / HEAD} is torn: {SUBMIT_AGAIN}") from error
    schema = head.get("schema") if isinstance(head, dict) else None
    if schema != SCHEMA:
        raise BadPlan(
            f"{folder / HEAD} has schema {schema!r}, and this lra reads {SCHEMA}: work on it with "
            f"the lra that wrote it, or {SUBMIT_AGAIN}"
        )
    found: dict[str, Any] = head
    return found


def _entry(row: Sequence[Any], index: Mapping[str, Any], needs: Sequence[Resources]) -> PlanEntry:
    key, fingerprint, kind, need, trainings, shorter, data, offset, size = row
    runner, turn, timed = index["kinds"][kind]
    return PlanEntry(
        key, index["fingerprints"][fingerprint], runner, turn, timed, needs[need],
        tuple(trainings), shorter, index["data"][data], offset, size,
    )  # fmt: skip


def cell_of(record: Mapping[str, Any]) -> Cell:
    """Return the cell of a record."""
    cell = Cell(
        identity=record["identity"],
        columns=record["columns"],
        config=record["config"],
        overrides=tuple(record["overrides"]),
        described=record["described"],
        fingerprint=record["fingerprint"],
        sources=record["sources"],
        place=record["place"],
    )
    if cell.key != record["key"]:
        raise BadPlan(f"the plan's cell {record['key']} has the key {cell.key}: {SUBMIT_AGAIN}")
    return cell


def digest_of(raw: bytes) -> str:
    """Return the digest of a file's content."""
    return hashlib.sha256(raw).hexdigest()[:16]
