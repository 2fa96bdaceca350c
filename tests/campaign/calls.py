"""Workers on a file system whose calls fail: reads, listings, stats, locks, flushes, writes.

Each error of a file server is met in one call of a hundred of every kind by workers of a sweep of
its own; locks and flushes of folders are refused altogether, as some file systems do. What is
wanted: no cell `crashed`, set aside or begun anew, and workers that reach the end by themselves.
"""

import errno
import re
import time
from collections.abc import Sequence
from pathlib import Path

from tests.campaign import machine
from tests.campaign.part import Found, Settings
from tests.campaign.shim import KINDS, Faults
from tests.campaign.sweeps import (
    SHORT,
    TINY,
    Bench,
    check_left,
    check_store,
    done_cells,
    undisturbed,
)

ABOUT = "calls of every kind that fail with each error of a file server"
PASSING = (
    "ESTALE", "EIO", "EAGAIN", "ETIMEDOUT", "EMFILE", "ENOMEM", "EBUSY", "EPROTO", "ENOTCONN",
    "EHOSTDOWN",
)  # fmt: skip
REFUSED = (
    ("ENOSYS", "lock"), ("ENOLCK", "lock"),
    ("EINVAL", "flush of a folder"), ("EOPNOTSUPP", "flush of a folder"),
)  # fmt: skip
"""Of file systems that cannot do it: every such call fails."""
PERMILLE = 10
LONGEST_S = 600.0
LEAST_SHARE = 0.9
"""Of workers, that end with 0."""
ENDED = re.compile(r"the worker ends with (\d+)")
WORDS = ("-m", *TINY, "model=linear,softmax", "seed=range(0,3)", "sweep=S")


def run(settings: Settings) -> Found:
    """Share a sweep for each error, and compare with an undisturbed one."""
    found = Found("calls")
    words = SHORT if settings.short else WORDS
    whole = undisturbed(settings, *words)
    found.figures["cells in each sweep"] = done_cells(whole)
    workers = settings.few(4, 2)
    cases = [(name, 1000, [kind]) for name, kind in REFUSED]
    cases += [(name, PERMILLE, [*KINDS]) for name in PASSING]
    ends: list[int] = []
    for name, permille, kinds in cases[:: settings.few(1, 7)]:
        for turn in range(settings.few(max(1, settings.cases // 400), 1)):
            bench = Bench(settings, f"{name}-{turn}", words)
            ends += _share(found, bench, workers, (name, permille, kinds))
            done, total = done_cells(bench.results), done_cells(whole)
            found.check(done == total, f"{name}: {done} of {total} cells; workers ended {ends}")
            check_store(found, bench.results, whole, f"{name}, {turn}")
            check_left(found, bench, f"{name}, {turn}")
        settings.say(f"{name}: {sum(found.faults.values()):,} faults, {len(ends)} workers")
    good = sum(code == 0 for code in ends)
    found.figures |= {"workers": len(ends), "workers that reached the end": good}
    found.check(good >= LEAST_SHARE * len(ends), f"{good} of {len(ends)} workers reached the end")
    return found


def _share(
    found: Found, bench: Bench, workers: int, case: tuple[str, int, Sequence[str]]
) -> list[int]:
    """Let workers share a sweep while calls fail; return how they ended."""
    name, permille, kinds = case
    # Locks are of the folder for temporary files; on results none is taken.
    below = bench.temporary if kinds == ["lock"] else bench.results
    faults = Faults(bench.folder / "faults", below)
    submit = ("submit", *bench.words, f"results={bench.results}", f"cluster.workers={workers}")
    ended = bench.run(*submit, more=faults.variables)
    found.check(ended.code == 0, f"{name}: submit ended with {ended.code}: {ended.said[-800:]}")
    faults.calls(permille, getattr(errno, name), kinds)
    begun = time.monotonic()
    while machine.processes_in(bench.folder) and time.monotonic() - begun < LONGEST_S:
        time.sleep(0.2)
    faults.calls()
    by_kind = faults.by_kind()
    for kind, count in by_kind.items():
        found.faults[f"{kind}, {name}"] += count
    found.check(by_kind, f"{name}: no call failed")
    logs = [file.read_text(errors="replace") for file in _logs(bench.results)]
    codes = [int(code) for log in logs for code in ENDED.findall(log)]
    found.check(len(codes) == workers, f"{name}: {len(codes)} of {workers} workers ended: {codes}")
    for log in logs:
        found.check(
            "starts from the beginning" not in log, f"{name}: a training began anew: {log[-800:]}"
        )
        found.check("Traceback" not in log, f"{name}: a traceback: {log[-800:]}")
    aside = [str(path) for path in bench.results.rglob("damaged-*")]
    found.check(not aside, f"{name}: set aside: {aside[:3]}")
    return codes


def _logs(results: Path) -> list[Path]:
    return sorted(results.glob("plans/S/logs/*.log"))
