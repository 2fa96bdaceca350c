"""Files of a store damaged at random, between two starts of a sweep and while it runs.

A sweep is killed in the middle, some of its files are damaged, and the same command goes on. What
a message names with a way out is moved away, as a person would. In the end the store must equal
the undisturbed one; nothing that was damaged may have been taken for a result.
"""

import os
import random
import re
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

from lra.runners.isolation.descendants import processes_below
from lra.runners.storage.formats import BadStore
from lra.runners.store import UnknownCell, read_outcomes, read_rows
from tests.campaign.part import Found, Settings
from tests.campaign.sweeps import (
    SHORT,
    TINY,
    Bench,
    Ended,
    check_left,
    check_store,
    done_cells,
    undisturbed,
)
from tests.lra import damage

ABOUT = "files of every kind cut, flipped, emptied, replaced, between starts and under way"
WORDS = ("-m", *TINY, "model=linear,softmax", "seed=range(0,3)")
KINDS = {
    "rows": "cells/*/*/rows-*.jsonl",
    "cell": "cells/*/*/cell.json",
    "environment": "cells/*/*/environment-*.json",
    "outcomes": "cells/*/*/outcomes-*.npz",
    "state": "cells/*/*/checkpoint-*/resume.pt",
    "state before": "cells/*/*/checkpoint-*/resume-previous.pt",
    "weights": "cells/*/*/checkpoint-*/weights.pt",
    "log": "cells/*/*/log.txt",
    "claim": "claims/*",
    "membership": "sweeps/*/*",
}
UNSEEN = frozenset({"rows", "cell", "environment", "weights", "outcomes"})
"""Kinds in which a damage that leaves the file sound, as another digit does, cannot be seen."""
MOST_STARTS = 12
FAILED = re.compile(r"^FAIL (/\S+?)(?:, line \d+)?:", re.MULTILINE)
REFUSED = re.compile(r"^lra: cannot write (/\S+?): .*(?:move it|remove it),", re.MULTILINE)
ALONE = ("log.txt", "resume.pt", "resume-previous.pt")
"""Files without which a cell is as complete as before."""


def run(settings: Settings) -> Found:
    """Damage files of many sweeps."""
    found = Found("torn")
    words = SHORT if settings.short else WORDS
    whole = undisturbed(settings, *words)
    found.figures["cells in each sweep"] = done_cells(whole)
    sweeps = settings.few(max(1, settings.cases // 10), 1)
    for turn in range(sweeps):
        draw = settings.draw("torn", turn)
        bench = Bench(settings, f"torn-{turn}")
        even = turn % 2 == 0
        _sweep(found, bench, draw, whole, f"torn, {turn}", chosen=words, under_way=even)
        if turn % 5 == 4:
            settings.say(f"{turn + 1} of {sweeps} sweeps, {sum(found.faults.values())} faults")
    return found


def _sweep(
    found: Found,
    bench: Bench,
    draw: random.Random,
    whole: Path,
    case: str,
    *,
    chosen: tuple[str, ...],
    under_way: bool,
) -> None:
    words = ("run", *chosen, f"results={bench.results}")
    running = bench.start(*words)
    killed = False
    rest = draw.randrange(3, 12)
    while rest > 0 and not killed:
        time.sleep(0.2 + 0.8 * draw.random())
        if running.over() or not under_way:
            killed = _kill(running.pid)
        for _ in range(min(rest, draw.randrange(1, 5))):
            rest -= bool(_damage_one(found, bench.results, draw))
        if not list(bench.results.glob("cells/*/*")):
            continue
    _kill(running.pid)
    running.end()
    for _ in range(MOST_STARTS):
        _age(bench.results)
        ended = bench.run(*words)
        _judge(found, ended, case)
        _readers(found, bench, whole, case)
        if not _mend(found, bench, ended) and ended.code == 0 and ": begun" not in ended.said:
            break
    else:
        found.check(False, f"{case}: gets nowhere in {MOST_STARTS} starts: {ended.said[-800:]}")
    _take_out(bench.results)
    check_store(found, bench.results, whole, case)
    check_left(found, bench, case, killed=1)


def _kill(pid: int) -> bool:
    for each in (pid, *processes_below(pid)):
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
    return True


def _damage_one(found: Found, results: Path, draw: random.Random) -> str:
    """Damage one file that is there, in a way that fits its kind; return the kind."""
    there = {
        kind: [path for path in sorted(results.glob(pattern)) if path.is_file()]
        for kind, pattern in KINDS.items()
    }
    kinds = [kind for kind, paths in there.items() if paths]
    if not kinds:
        return ""
    kind = draw.choice(kinds)
    path = draw.choice(there[kind])
    ways = [way for way in damage.ANY if way is not damage.pipe]
    if path.suffix in (".json", ".jsonl"):
        ways += damage.JSON
    if kind == "rows":
        ways += [damage.cut_at_a_line, damage.newer]
    if kind == "cell":
        ways += [damage.newer]
    if kind in UNSEEN:
        ways = [way for way in ways if way.__name__ not in damage.HARMLESS]
    way = draw.choice(ways)
    with suppress(OSError, ValueError, IndexError, TypeError):
        way(path, draw)  # which may be gone, or empty, by now
        found.faults[f"{kind} damaged"] += 1
        return kind
    return ""


def _judge(found: Found, ended: Ended, case: str) -> None:
    found.check(ended.code in (0, 1, 2), f"{case}: ended with {ended.code}: {ended.said[-800:]}")
    found.check(ended.clear(), f"{case}: ended unclear: {ended.said[-800:]}")


def _readers(found: Found, bench: Bench, whole: Path, case: str) -> None:
    """Check that what is read of a damaged store is a part of the undisturbed rows."""
    left_out: list[Exception] = []
    rows = read_rows(bench.results, left_out=left_out)  # type: ignore[arg-type]
    known = {
        (r.cell, r.metric, r.step, str(r.labels)): r.value for r in read_rows(whole).itertuples()
    }
    wrong = 0
    for row in rows.itertuples():
        value = known.get((row.cell, row.metric, row.step, str(row.labels)))
        same = value is not None and (value == row.value or row.metric in TIMES)
        wrong += not same and row.status == "ok"
    found.figures["wrong rows read"] = int(found.figures.get("wrong rows read", 0)) + wrong
    found.check(not wrong, f"{case}: {wrong} rows were read that nobody wrote")
    for folder in whole.glob("cells/*/*"):
        with suppress(BadStore, UnknownCell):
            own, sound = (read_outcomes(root, folder.name) for root in (bench.results, whole))
            same = [str(each) for each in own] == [str(each) for each in sound]
            found.check(same or not own, f"{case}: other outcomes of {folder.name} were read")
    audit = bench.run("doctor", "--store", "--results", str(bench.results))
    found.check("Traceback" not in audit.said, f"{case}: audit: {audit.said[-800:]}")
    named = [error for error in left_out if str(error).split(":")[0] not in audit.said]
    found.check(not named, f"{case}: the audit does not name {named}")


TIMES = frozenset(
    {"train_step_time", "train_time", "data_wait", "waiting_share", "process_peak_bytes"}
)


def _mend(found: Found, bench: Bench, ended: Ended) -> bool:
    """Do what audit and refusal say: move away what they name, whose cell then runs anew.

    Returns:
        Whether there was something.
    """
    audit = bench.run("doctor", "--store", "--results", str(bench.results))
    told = FAILED.findall(audit.said) + REFUSED.findall(ended.said)
    named = [Path(name) for name in dict.fromkeys(told)]
    for path in named:
        found.faults["files moved away as a message asked"] += 1
        cell = path.relative_to(bench.results).parts[:3]
        again = [] if path.name in ALONE else (bench.results / Path(*cell)).glob("rows-*.jsonl")
        for each in (path, *again):
            if os.path.lexists(each):
                each.rename(bench.folder / f"moved-{time.time_ns()}-{each.name}")
    return bool(named)


def _age(results: Path) -> None:
    """Let ten minutes pass for claims: damaged, they may name a machine that nobody knows."""
    for path in results.glob("claims/*"):
        os.utime(path, (time.time() - 600,) * 2, follow_symlinks=False)


def _take_out(results: Path) -> None:
    """Take out what was set aside, and claims on finished cells, which nobody asks for any more."""
    for path in results.glob("claims/*"):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for path in results.glob("cells/*/*/damaged-*"):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
