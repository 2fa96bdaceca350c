"""From the cells of a sweep to its stored plan, and from two submissions to one plan."""

import json
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from lra.cluster.code import is_current, known_sources
from lra.cluster.engine import Resources, WorkerGroup
from lra.cluster.plan import (
    HEAD,
    PARTED,
    SCHEMA,
    BadPlan,
    FilePlace,
    StoredPlan,
    TornPart,
    plan_folder,
)
from lra.composition.runner_class import runner_of
from lra.conf.short_values import number_of
from lra.conf.system_errors import lexists
from lra.runners.measurement.hardware import Device
from lra.runners.records import canonical, digest
from lra.runners.storage.atomic import write_whole
from lra.runners.storage.claims import take_claim
from lra.runners.storage.seals import digest_of, seal
from lra.sweep.cell_list import turn_of
from lra.sweep.estimate import Forecasts
from lra.sweep.identity import version
from lra.sweep.planned_cells import curve, data_of
from lra.sweep.sweep import PlannedCell, Sweep
from lra.version import lra_version

OTHERS = "rerun the other `lra submit` commands of this sweep, too. Stored results stay"
LOCK = ".planning"
LOCKED_S = 60.0
INDEXED = ("turn", "timed", "needs", "data")
"""Fields of a record that are stored only in the index."""
Record = dict[str, Any]


def needs_of(planned: PlannedCell, seconds: float | None, memory_bytes: int | None) -> Resources:
    """Return the resources that a worker must have to run a cell.

    Args:
        planned: The cell.
        seconds: Its forecast time; None: not known.
        memory_bytes: Its forecast memory; None: not known.
    """
    hardware = planned.run.hardware
    processes = int(getattr(hardware, "processes", 1))
    on_gpu = hardware.device is Device.cuda
    return Resources(
        gpus=processes if on_gpu else 0,
        cpus=int(planned.cell.columns["threads"]) * processes,
        memory_bytes=memory_bytes,
        seconds=None if seconds is None else float(f"{seconds:.3g}"),  # equal ones are stored once
    )


def records(sweep: Sweep, forecasts: Forecasts) -> list[Record]:
    """Return what a plan stores of each cell, in the order in which a sweep runs them.

    Args:
        sweep: the cells.
        forecasts: time and memory of the cells that are to be run.
    """
    by_key = {planned.cell.key: guess for planned, guess in forecasts}
    cell_records = []
    for planned in sweep.planned:
        cell, guess = planned.cell, by_key.get(planned.cell.key)
        seconds, need = (None, None) if guess is None else (guess.seconds, guess.whole_bytes)
        cell_records.append(
            {
                "key": cell.key,
                "fingerprint": cell.fingerprint,
                "identity": cell.identity,
                "columns": cell.columns,
                "overrides": list(cell.overrides),
                "config": cell.config,
                "described": cell.described,
                "sources": cell.sources,
                "place": dict(cell.place),
                "title": sweep.titles[cell.key],
                "starts_from": {name: s.key for name, s in planned.trainings.items()},
                "curve": digest(curve(cell)) if runner_of(cell).by_length else None,
                "turn": turn_of(planned)[0],
                "timed": planned.run.runner.timed,
                "needs": asdict(needs_of(planned, seconds, need)),
                "data": digest(data_of(planned)) if planned.run.runner.data else "",
            }
        )
    return cell_records


def stored_records(plan: StoredPlan, without: Collection[str] = ()) -> list[Record]:
    """Return the records of a stored plan without the damaged ones.

    Args:
        plan: The plan.
        without: Keys of cells to exclude.
    """
    readable = []
    for place, entry in enumerate(plan.entries):
        if entry.key in without:
            continue
        try:
            record = plan.record(place)
        except TornPart:
            continue
        sources = [plan.entries[n].key for n in entry.trainings]
        record["starts_from"] = dict(zip(record["starts_from"], sources, strict=True))
        record |= {"turn": entry.turn, "timed": entry.timed, "needs": asdict(entry.needs)}
        record["data"] = entry.data
        readable.append(record)
    return readable


def merge_records(new: Sequence[Record], before: Sequence[Record]) -> list[Record]:
    """Return the cells of two submissions of one sweep in the order in which they run.

    A cell of the earlier submission stays if the code that it depends on is still the same. The
    code of packages that this command does not name is checked later, by the workers.

    Args:
        new: The cells of this submission.
        before: The cells of the earlier submission that are not in `new`.
    """
    former = [r for r in before if is_current(known_sources(r["sources"], r["config"]["plugins"]))]
    keys = {record["key"] for record in [*new, *former]}
    # A cell goes if the training that it starts from has gone.
    former = [r for r in former if keys.issuperset(r["starts_from"].values())]
    if not former:
        return [*new]
    return sorted([*new, *former], key=lambda r: (r["turn"], str(r["columns"]["runner"])))


class PlanFile:
    """The file of a plan's cells while it is written: equal parts are written once."""

    def __init__(self) -> None:
        """Begin with no lines; equal parts are found by their text, the same ones more quickly."""
        self.data = bytearray()
        self._by_text: dict[str, FilePlace] = {}
        self._by_object: dict[int, tuple[object, FilePlace]] = {}

    def add(self, text: str) -> FilePlace:
        """Append a line of text; return its place in the file."""
        raw = text.encode()
        at = FilePlace(len(self.data), len(raw), digest_of(raw))
        self.data += raw
        self.data += b"\n"
        return at

    def part(self, value: object) -> FilePlace:
        """Return the place of a part in the file, after writing it if no equal one is there."""
        before = self._by_object.get(id(value))
        if before is not None:
            _, place = before
            return place
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        if text not in self._by_text:
            self._by_text[text] = self.add(text)
        # The value itself is stored, too: its number could otherwise be given to another object.
        self._by_object[id(value)] = value, self._by_text[text]
        return self._by_text[text]

    def parted(self, node: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Split a mapping: return it with None for each inner mapping or list, and their places.

        The inner ones are written to this file as parts. The Nones keep the order of the keys.
        """
        inner = {k: v for k, v in node.items() if isinstance(v, Mapping | list) and v}
        whole = {k: None if k in inner else v for k, v in node.items()}
        return whole, {k: self.part(v) for k, v in inner.items()}


def write(
    root: Path,
    sweep: Sweep,
    forecasts: Forecasts,
    *,
    groups: Sequence[WorkerGroup],
    more: Mapping[str, Any],
    say: Callable[[str], object],
) -> StoredPlan:
    """Store the plan of a sweep, joined with the one that is there.

    Args:
        root: the results folder.
        sweep: its cells.
        forecasts: of those that are to be run.
        groups: the workers that are asked for.
        more: further entries of the head: words, report, wait_s.
        say: is called with a sentence if cells of the earlier plan are lost.

    Raises:
        BadPlan: another process is writing it.
    """
    folder = plan_folder(root, sweep.name)
    until = time.monotonic() + LOCKED_S
    while (lock := take_claim(folder / LOCK)) is None:
        if time.monotonic() > until:
            raise BadPlan(f"{folder / LOCK}: another `lra submit` is writing this plan; try again")
        time.sleep(0.1)
    with lock:
        new = records(sweep, forecasts)
        before, everything = _join_former(folder, new, say)
        # Workers of an earlier submission still look for their group in the new plan.
        group_names = {group.name for group in groups}
        older = [] if before is None else [g for g in before.groups if g.name not in group_names]
        _write_plan(folder, everything, {**_describe_head(sweep, [*groups, *older]), **more})
        # Active workers may have the files of the earlier plan open: only older ones are removed.
        keep = {before.head["cells"], before.head["index"]} if before else set()
        plan = StoredPlan(folder)
        keep |= {plan.head["cells"], plan.head["index"]}
        for path in (*folder.glob("cells-*.jsonl"), *folder.glob("index-*.json")):
            if path.name not in keep:
                path.unlink(missing_ok=True)
    return plan


def _join_former(
    folder: Path, new: Sequence[Record], say: Callable[[str], object]
) -> tuple[StoredPlan | None, list[Record]]:
    """Return the earlier plan (None if there is none that is sound), and the cells of both."""
    if not lexists(folder / HEAD):
        return None, [*new]
    try:
        before = StoredPlan(folder)
    except BadPlan as error:
        reason = str(error).split(": ")[0]  # without what the user could do
        say(f"{reason}: the plan is rewritten with only the runs of this command; {OTHERS}")
        return None, [*new]
    keys = {record["key"] for record in new}
    sound = stored_records(before, without=keys)  # they take 0.3 GiB for 50,000 cells
    readable = keys | {record["key"] for record in sound}
    lost_keys = [entry.key for entry in before.entries if entry.key not in readable]
    if lost_keys:
        lost_runs = number_of(len(lost_keys), "run")
        say(f"{before.cells} is damaged, which loses {lost_runs} of other commands; {OTHERS}")
    return before, merge_records(new, sound)


def _describe_head(sweep: Sweep, groups: Sequence[WorkerGroup]) -> dict[str, Any]:
    """Return the entries of a plan's head that do not depend on its cells."""
    return {
        "sweep": sweep.name,
        "control": {
            k: v
            for k, v in asdict(sweep.control).items()
            if k not in ("dry_run", "shard", "sweep_timeout_s")
        },
        "logger": asdict(sweep.logger),
        "groups": [asdict(group) for group in groups],
        "versions": {"lra": lra_version(), "torch": version("torch")},
    }


def _write_plan(folder: Path, everything: Sequence[Record], about: Mapping[str, Any]) -> None:
    """Write the three files of a plan: its cells, its index and, last, its head with `about`."""
    file = PlanFile()
    places = {record["key"]: place for place, record in enumerate(everything)}
    shorter = _find_shorter(everything, places)
    tables: dict[str, dict[str, int]] = {
        name: {} for name in ("fingerprints", "kinds", "needs", "data")
    }

    def number(table: str, value: object) -> int:
        """Return the number of a value in a table, to which a new value is added."""
        return tables[table].setdefault(json.dumps(value), len(tables[table]))

    entries: list[list[Any]] = []
    sources: dict[str, str] = {}
    for record in everything:
        stored = {key: value for key, value in record.items() if key not in INDEXED}
        stored |= {name: file.parted(record[name]) for name in PARTED}
        stored["sources"] = file.part(record["sources"])
        stored["starts_from"] = [*record["starts_from"]]
        sources |= record["sources"]
        place = file.add(json.dumps(stored, ensure_ascii=False, allow_nan=False))
        kind = (record["columns"]["runner"], record["turn"], record["timed"])
        trainings = [places[key] for key in record["starts_from"].values()]
        entries.append(
            [record["key"], number("fingerprints", record["fingerprint"]), number("kinds", kind),
             number("needs", record["needs"]), trainings, shorter.get(record["key"]),
             number("data", record["data"]), *place]
        )  # fmt: skip
    lists = {name: [json.loads(text) for text in table] for name, table in tables.items()}
    index = json.dumps({**lists, "entries": entries}, separators=(",", ":")).encode()
    mark = digest([digest_of(index), digest_of(file.data)], 12)
    names = {"index": f"index-{mark}.json", "cells": f"cells-{mark}.jsonl"}
    head = {
        "schema": SCHEMA,
        **names,
        "index_digest": digest_of(index),
        "bytes": len(file.data),
        "count": len(entries),
        "made": time.time(),
        "host": os.uname().nodename,
        "sources": sources,
        "plugins": sorted({name for r in everything for name in r["config"]["plugins"]}),
        **about,
    }
    write_whole(folder / names["cells"], file.data)
    write_whole(folder / names["index"], index)
    write_whole(folder / HEAD, seal(head, indent=1))


def _find_shorter(everything: Sequence[Record], places: Mapping[str, int]) -> dict[str, int]:
    """Return the place of the next shorter length of each cell's curve, by key."""
    curves: dict[str, list[Record]] = {}
    for record in everything:
        if record["curve"] is not None:
            curves.setdefault(canonical([record["curve"]]), []).append(record)
    shorter = {}
    for cells in curves.values():
        ordered = sorted(cells, key=lambda cell: int(cell["columns"]["length"]))
        for before, after in pairwise(ordered):
            if before["columns"]["length"] < after["columns"]["length"]:
                shorter[after["key"]] = places[before["key"]]
    return shorter
