"""The stored plan of a sweep: what workers need to run its cells, read as they go.

    results/plans/<sweep>/plan.json                 the head: which files count, and for whom
                          index-<digest>.json       a few facts of each cell, read by all workers
                          cells-<digest>.jsonl      the cells; what several share stands there once
                          workers/<worker>.json     what each worker does
                          logs/<worker>.log         what it has printed
                          submissions/<time>.json   what was started, and by which engine

The head is replaced as a whole, and after the files that it names: a reader finds the old plan or
the new one. The files of the old plan stay for the workers that have them open.

Every byte is checked when it is read: the head has a digest of itself and of the index, the index
has those of the cells, and a cell those of its parts. A damaged cell is never run.
"""

import errno
import json
import os
import re
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from lra.cluster.engine import Resources, WorkerGroup
from lra.composition.binding import make
from lra.composition.configuration import SWEEP_NAME
from lra.composition.run import Control, Logger
from lra.conf.plain_files import (
    MOST_JSON,
    NoFile,
    NoJson,
    Types,
    open_file,
    parse_json,
    read_bytes,
    read_marked,
)
from lra.conf.system_errors import lexists, persistent
from lra.errors import near
from lra.runners.records import Cell
from lra.runners.storage.seals import NotSealed, digest_of, unseal
from lra.sweep.sweep import SweepCells

SCHEMA = 2
"""2: cells and parts with digests. 1: none."""
FOLDER = "plans"
HEAD = "plan.json"
_KEY = re.compile(r"[0-9a-z]{1,64}")
"""Of keys and fingerprints, after which files are named."""
PARTED = ("config", "described")
"""Fields of a cell that are stored by parts, which others may share."""


class BadPlan(ValueError):
    """A stored plan that cannot be used; the message says why and what to do."""


class TornPart(BadPlan):
    """A part of a plan is damaged or missing."""


class FilePlace(NamedTuple):
    """Where a line is in the file of the cells: its first byte, its length, and its digest."""

    offset: int
    size: int
    digest: str


class PlanEntry(NamedTuple):
    """The facts of a cell that all workers need: one entry of the index."""

    key: str
    fingerprint: str
    runner: str
    turn: int
    """A number that sorts cells as a sweep runs them: see `lra.sweep.cell_list.turn_of`."""
    timed: bool
    needs: Resources
    trainings: tuple[int, ...]
    """Places in the index of the trainings that it starts from."""
    shorter: int | None
    """Place of the next shorter length of its curve, which must end first; None: there is none."""
    data: str
    """A digest of the data that it needs, which a worker prepares once; "": it needs no data."""
    place: FilePlace
    """Where its record is in the file of the cells."""


class StoredPlan:
    """A plan as a worker sees it; cells are read when they are asked for."""

    def __init__(self, folder: Path) -> None:
        """Open the plan of a folder.

        Raises:
            BadPlan: there is no plan, it is damaged, or it has another schema.
        """
        self.folder = folder
        self.head, self.mark = _read_head(folder)
        """`mark`: when the head was written, in nanoseconds since 1970, and its inode."""
        self.version = str(self.head["cells"])
        self.sweep, self.root = str(self.head["sweep"]), results_of(folder)
        if not SWEEP_NAME.fullmatch(self.sweep):  # reports use it as the name of a folder
            raise BadPlan(
                f"{folder / HEAD}: {self.sweep!r:.80} cannot be the name of a sweep; {SUBMIT_AGAIN}"
            )
        self.cells, index_file = folder / self.head["cells"], folder / self.head["index"]
        with _explain_damage():
            raw = read_bytes(index_file)
        if digest_of(raw) != self.head["index_digest"]:
            raise TornPart(f"{index_file} is damaged: {SUBMIT_AGAIN}")
        with _explain_damage():
            self._file = open_file(self.cells)
        self._closed = weakref.finalize(self, os.close, self._file)
        if os.fstat(self._file).st_size != self.head["bytes"]:
            raise TornPart(f"{self.cells} is damaged: {SUBMIT_AGAIN}")
        index = json.loads(raw)  # byte for byte what was written, by its digest
        needs = [Resources(**entry) for entry in index["needs"]]
        self.entries = [_make_entry(entry, index, needs) for entry in index["entries"]]
        self._parts: dict[int, Any] = {}

    @cached_property
    def places(self) -> dict[str, int]:
        """The place of each cell in the index, by key."""
        return {entry.key: place for place, entry in enumerate(self.entries)}

    @cached_property
    def control(self) -> Control:
        """The options that steer the sweep, such as time limits."""
        return Control(**self.head["control"])

    @cached_property
    def logger(self) -> Logger:
        """The dashboard of the sweep."""
        logger: Logger = make(Logger, self.head["logger"], "logger")
        return logger

    @cached_property
    def groups(self) -> list[WorkerGroup]:
        """The groups of workers that were submitted, the latest ones first."""
        return [
            WorkerGroup(
                name=group["name"],
                count=group["count"],
                resources=Resources(**group["resources"]),
                timed=group.get("timed"),
            )
            for group in self.head["groups"]
        ]

    def title(self, place: int) -> str:
        """Return the name of a cell for people."""
        return str(self._stored(place)["title"])

    def cell(self, place: int) -> Cell:
        """Return the cell at a place of the index."""
        return cell_of(self.record(place))

    def listed(self, cells: Sequence[Cell] = ()) -> SweepCells:
        """Return the part of the sweep that reports and dashboards need, with the given cells."""
        return SweepCells(
            name=self.sweep, root=self.root, logger=self.logger, cells=cells,
            titles=PlanTitles(self),
        )  # fmt: skip

    def record(self, place: int) -> dict[str, Any]:
        """Return everything that is stored of a cell.

        Other records share its parts: nothing may change them.
        """
        whole_record = dict(self._stored(place))
        for name in PARTED:
            scalars, parts = whole_record[name]  # `PlanFile.parted` wrote them
            whole_record[name] = {**scalars, **{key: self._part(*at) for key, at in parts.items()}}
        whole_record["sources"] = self._part(*whole_record["sources"])
        return whole_record

    def _stored(self, place: int) -> dict[str, Any]:
        """Return the record of a cell as it is in the file, with the places of its parts."""
        stored: dict[str, Any] = self._read(self.entries[place].place)
        return stored

    def _part(self, offset: int, size: int, digest: str) -> Any:
        """Return a part that several cells may share; it is read once."""
        if offset not in self._parts:
            self._parts[offset] = self._read(FilePlace(offset, size, digest))
        return self._parts[offset]

    def _read(self, place: FilePlace) -> Any:
        """Read a line of the file of the cells. Raises TornPart if its digest is wrong."""
        raw = persistent(os.pread, self._file, place.size, place.offset)
        if digest_of(raw) != place.digest:
            raise TornPart(f"{self.cells} is damaged at byte {place.offset:,}: {SUBMIT_AGAIN}")
        return json.loads(raw)

    def close(self) -> None:
        """Close the file."""
        self._closed()


class PlanTitles(Mapping[str, str]):
    """The names of the cells of a plan, by key; each is read from the file when it is needed."""

    def __init__(self, plan: StoredPlan) -> None:
        self.plan = plan

    def __getitem__(self, key: str) -> str:
        """Return the name of a cell, or its key if the plan is damaged at this place."""
        try:
            return self.plan.title(self.plan.places[key])
        except TornPart:
            return key

    def __iter__(self) -> Iterator[str]:
        """Iterate over the keys."""
        return iter(self.plan.places)

    def __len__(self) -> int:
        """Return the number of cells."""
        return len(self.plan.entries)


SUBMIT_AGAIN = "rerun the `lra submit` command, which writes the plan again; results stay"
NO_FILE = "this is not a regular file: move it away"
_HEAD: Types = {
    "sweep": str, "cells": str, "index": str, "index_digest": str, "bytes": int,
    "made": (float, int), "control": dict, "logger": dict, "groups": list, "sources": dict,
    "versions": dict,
}  # fmt: skip
_NO_FILE = {errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR}


@contextmanager
def _explain_damage() -> Iterator[None]:
    """Turn errors about a missing file, or one of a wrong kind, into TornPart with what to do.

    Other errors of the disk pass unchanged, as the same call may succeed later.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise TornPart(f"{error.filename} is missing: {SUBMIT_AGAIN}") from error
    except OSError as error:
        if error.errno not in _NO_FILE and not isinstance(error, NoFile):
            raise
        raise TornPart(f"{error.filename}: {NO_FILE}; {SUBMIT_AGAIN}") from error


def plan_folder(root: Path, sweep: str) -> Path:
    """Return the folder of a sweep's plan, present or not."""
    return root / FOLDER / sweep


def results_of(folder: Path) -> Path:
    """Return the results folder that a plan's folder is in."""
    return folder.parent.parent


def locate_plan(name: str, root: Path) -> Path:
    """Return the folder of a plan from its path, or from the name of its sweep.

    Raises:
        BadPlan: there is no such plan; the message names similar ones.
    """
    for folder in (Path(name), plan_folder(root, name)):
        if lexists(folder / HEAD):  # whoever opens it says what is wrong with it
            return folder.resolve() if folder.is_absolute() else folder
    if "/" in name:
        raise BadPlan(
            f"there is no plan in {name}; wanted a folder with {HEAD}, or the name of a sweep"
        )
    existing = sorted(path.parent.name for path in (root / FOLDER).glob(f"*/{HEAD}"))
    close = near(name, existing)
    hint = (
        f"near matches: {', '.join(close)}" if close else f"it has plans: {_first_names(existing)}"
    )
    raise BadPlan(
        f"there is no plan of a sweep {name!r} in {root}; {hint}. `lra submit sweep={name} …` "
        "writes one; --results names another results folder"
    )


def _first_names(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (" …" if len(names) > 10 else "") if names else "none"


def mark_of(status: os.stat_result) -> tuple[int, int]:
    """Return time of writing (in ns) and inode of a head: a new head differs in one of them."""
    return status.st_mtime_ns, status.st_ino


def _read_head(folder: Path) -> tuple[dict[str, Any], tuple[int, int]]:
    """Return the content of plan.json, checked, and its `mark_of`."""
    path = folder / HEAD
    with _explain_damage():
        raw, status = read_marked(path, MOST_JSON)
    _check_schema(path, raw)
    try:
        head = unseal(raw, _HEAD)
    except NotSealed as error:
        raise TornPart(f"{path} is damaged: {SUBMIT_AGAIN}") from error
    return head, mark_of(status)


def _check_schema(path: Path, raw: bytes) -> None:
    """Raise BadPlan for the plan of another version of lra, whether its seal is right or not."""
    head = None
    with suppress(NoJson):
        head = parse_json(raw)
    schema = head.get("schema") if isinstance(head, dict) else None
    if schema is not None and schema != SCHEMA:
        raise BadPlan(
            f"{path} has schema {schema!r:.40}, but this lra reads schema {SCHEMA}: use "
            f"the lra that wrote it, or {SUBMIT_AGAIN}"
        )


def _make_entry(
    row: Sequence[Any], index: Mapping[str, Any], needs: Sequence[Resources]
) -> PlanEntry:
    """Return an entry of the index from its row, which names some values by their numbers."""
    key, fingerprint, kind, need, trainings, shorter, data, *place = row  # most are numbers
    if not _KEY.fullmatch(key) or not _KEY.fullmatch(index["fingerprints"][fingerprint]):
        raise BadPlan(f"the plan has {key!r:.80}, which is no key of a run: {SUBMIT_AGAIN}")
    runner, turn, timed = index["kinds"][kind]
    return PlanEntry(
        key, index["fingerprints"][fingerprint], runner, turn, timed, needs[need],
        tuple(trainings), shorter, index["data"][data], FilePlace(*place),
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
        raise BadPlan(
            f"the plan has the key {record['key']} for the run {cell.key}: {SUBMIT_AGAIN}"
        )
    return cell
