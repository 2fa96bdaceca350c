"""Stored plans, what is noted beside them, and the index of rows, damaged while workers run.

The same `lra submit` is given again and again, and `lra watch` between, while files and folders of
the plan and of the index are cut, flipped, emptied, replaced or removed. Rows are left alone: in
the end the store must equal the undisturbed one, and what is watched must always be true.
"""

import json
import random
import re
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from lra.runners.storage.index import statuses
from tests.campaign import fresh, machine
from tests.campaign.part import Found, Settings
from tests.campaign.sweeps import Bench, Ended, check_left, check_store, done_cells
from tests.lra import damage

SWEEP = "shared"
KINDS = {
    "plan's head": "plan.json",
    "plan's index": "index-*.json",
    "plan's cells": "cells-*.jsonl",
    "worker's state": "workers/*",
    "note of a submission": "submissions/*",
    "worker's log": "logs/*",
    "note of a report": "reported.json",
    "index of rows": "../../index/*",
    "folder of a plan": "*",
}
MOST_STEPS = 14
QUIET_S = 200.0
MOVE = re.compile(
    r"(/\S+?): (?:no file, which it has to be: move it away|.*folder.* needed: move it)"
)
WAYS_OUT = (
    "give the `lra submit` command again",
    "writes one",
    "move it",
    "the same command goes on from here",
)


def removed(path: Path, random: random.Random) -> None:
    """Remove a file."""
    path.unlink()


def linked(path: Path, random: random.Random) -> None:
    """Put a link to another file of the plan in its place."""
    others = [each for each in path.parents[1].rglob("*.json*") if each != path]
    target = random.choice(others)
    path.unlink()
    path.symlink_to(target)


WAYS = [way for way in (*damage.ANY, *damage.JSON, damage.newer) if way is not damage.pipe]
WAYS += [removed, linked]


def run(found: Found, settings: Settings, words: tuple[str, ...], whole: Path, turns: int) -> None:
    """Share some sweeps whose plans are damaged."""
    for turn in range(turns):
        bench = Bench(settings, f"plans-{turn}")
        draw = settings.draw("torn plans", turn)
        _share(found, bench, draw, words, whole)
        if turn % 5 == 4:
            settings.say(f"{turn + 1} of {turns} plans, {sum(found.faults.values())} faults")


def _share(
    found: Found, bench: Bench, draw: random.Random, words: tuple[str, ...], whole: Path
) -> None:
    case = bench.folder.name
    total, striking = done_cells(whole), draw.randrange(2, 6)
    given = ("submit", *words, f"sweep={SWEEP}", f"results={bench.results}",
             "cluster.workers=2", "cluster.wait_s=20")  # fmt: skip
    for step in range(MOST_STEPS):
        ended = _lra(bench, *given)
        _judge(found, ended, (0, 2), case)
        _move_away(found, bench, ended.said)
        if step < striking:
            if draw.random() < 0.7:  # else before any worker has begun
                _until_work(bench)
            for _ in range(draw.randrange(1, 5)):
                time.sleep(draw.random())
                _strike(found, bench, draw)
                if draw.random() < 0.5:
                    _watch(found, bench, total, case)
            continue
        quiet = _quiet(bench)
        found.check(quiet, f"{case}: workers stay: {machine.processes_in(bench.folder)}")
        _move_away(found, bench, _logs(bench))
        if _watch(found, bench, total, case, quiet=quiet) == total:
            break
    else:
        found.check(False, f"{case}: gets nowhere in {MOST_STEPS} steps: {_logs(bench)[-1500:]}")
    _quiet(bench)
    found.check("Traceback" not in _logs(bench), f"{case}: a log has {_logs(bench)[-2500:]}")
    said = statuses(bench.results)
    with suppress(OSError):
        (bench.results / "index" / "rows.json").unlink()
    found.check(said == statuses(bench.results), f"{case}: the index of rows answers otherwise")
    check_store(found, bench.results, whole, case)
    check_left(found, bench, case)


def _lra(bench: Bench, *words: str) -> Ended:
    return bench.start(*words, prepare=partial(fresh.begin, fresh.with_small_index)).end()


def _judge(found: Found, ended: Ended, codes: tuple[int, ...], case: str) -> None:
    found.check(ended.code in codes, f"{case}: ended with {ended.code}: {ended.said[-1500:]}")
    sound = "Traceback" not in ended.said and "this is a bug" not in ended.said
    found.check(sound, f"{case}: {ended.said[-2500:]}")
    way_out = ended.code != 2 or any(way in ended.said for way in WAYS_OUT)
    found.check(way_out, f"{case}: no way out in {ended.said[-1500:]}")


def _watch(found: Found, bench: Bench, total: int, case: str, *, quiet: bool = False) -> int:
    """Look how far the sweep is; return how many cells are said to be done."""
    ended = _lra(bench, "watch", SWEEP, f"--results={bench.results}", "--json")
    _judge(found, ended, (0, 2, 3), case)
    if ended.code == 2:
        _move_away(found, bench, ended.said)
        return -1
    standing, there = json.loads(ended.last), done_cells(bench.results)
    found.check(standing["total"] == total, f"{case}: watch tells of {standing['total']} cells")
    true = standing["done"] == there if quiet else standing["done"] <= there
    found.check(true, f"{case}: watch tells of {standing['done']} cells, and {there} have rows")
    return int(standing["done"])


def _strike(found: Found, bench: Bench, draw: random.Random) -> None:
    """Damage a file that is there, or put a file in the place of a folder."""
    plan = bench.results / "plans" / SWEEP
    there = {
        kind: [each for each in sorted(plan.glob(pattern)) if each.is_file()]
        for kind, pattern in KINDS.items()
    }
    there["folder of a plan"] = [each for each in sorted(plan.glob("*")) if each.is_dir()]
    kinds = [kind for kind, paths in there.items() if paths]
    if not kinds:
        return
    kind = draw.choice(kinds)
    path = draw.choice(there[kind])
    with suppress(OSError, ValueError, IndexError, TypeError):  # gone by now, or no JSON object
        if kind == "folder of a plan":
            path.rename(bench.folder / f"moved-{time.time_ns()}-{path.name}")
            path.write_text("no folder\n")
        else:
            draw.choice(WAYS)(path, draw)
        found.faults[f"{kind} damaged"] += 1


def _move_away(found: Found, bench: Bench, said: str) -> None:
    """Do what messages say of what stands where something else has to be."""
    for name in dict.fromkeys(MOVE.findall(said)):
        path = Path(name)
        if path.is_symlink() or path.is_dir() or path.read_text(errors="replace") == "no folder\n":
            path.rename(bench.folder / f"moved-{time.time_ns()}-{path.name}")
            found.faults["files moved away as a message asked"] += 1


def _until_work(bench: Bench) -> None:
    """Wait until a worker holds a cell, or none is left."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and machine.processes_in(bench.folder):
        if [*(bench.results / "claims").glob("[!.]*")]:
            return
        time.sleep(0.02)


def _quiet(bench: Bench) -> bool:
    """Wait until nobody works any more."""
    deadline = time.monotonic() + QUIET_S
    while machine.processes_in(bench.folder):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _logs(bench: Bench) -> str:
    """Return what workers have said, wherever it was moved to."""
    found = []
    for folder in ("results/plans/*/logs", "moved-*"):
        for path in sorted(bench.folder.glob(f"{folder}/*.log")):
            with suppress(OSError):
                found.append(path.read_text(errors="replace"))
    return "\n".join(found)
