"""Clocks that are hours wrong, and jump, beside workers whose clocks are right.

Two sweeps share one store, each on a machine of its own as far as it can tell. The clock of the
day of one of them is hours ahead or behind, from the start or by jumps in mid-sweep; the file
server (the kernel, which gives files their times) keeps the right time.
"""

import re
import time
from collections import Counter
from pathlib import Path

from tests.campaign.part import Found, Settings
from tests.campaign.shim import Faults
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

ABOUT = "clocks that jump by hours in one of two sweeps of a store"
WORDS = ("-m", *TINY, "model=linear,performer", "seed=range(0,4)")
ONE = ("hardware.training_processes=1", "runner.timeout_s=300")
"""Of these trainings at a time."""
HOURS = (-9000, -25, -3, -1, 1, 3, 25, 9000)
MOST_STARTS = 20


def run(settings: Settings) -> Found:
    """Share stores between a right and a wrong clock."""
    found = Found("clocks")
    words = SHORT if settings.short else WORDS
    whole = undisturbed(settings, *words)
    found.figures["cells in each store"] = done_cells(whole)
    for turn in range(settings.few(16, 1)):
        _two(found, settings, turn, words, whole)
        if turn % 4 == 3:
            settings.say(f"{turn + 1} stores, {sum(found.faults.values())} jumps")
    return found


def _two(found: Found, settings: Settings, turn: int, chosen: tuple[str, ...], whole: Path) -> None:
    draw = settings.draw("clocks", turn)
    bench = Bench(settings, f"clocks-{turn}")
    case = f"clocks, {turn}"
    faults = Faults(bench.folder / "faults", bench.results)
    faults.host(turn + 2)
    hours = draw.choice(HOURS)
    if draw.random() < 0.5:  # from the start, as a host whose clock was never set
        faults.clock(3600 * hours)
        found.faults["clock wrong from the start"] += 1
    words = ("run", *chosen, *ONE, f"results={bench.results}")
    wrong = bench.start(*words, more=faults.variables)
    right = bench.start(*words)
    while not (wrong.over() and right.over()):
        time.sleep(0.3 + 1.5 * draw.random())
        hours = draw.choice([h for h in HOURS if h != hours])
        faults.clock(3600 * hours)
        found.faults["jump of a clock"] += 1
    begun: Counter[str] = Counter()
    for ended in (wrong.end(), right.end()):
        _judge(found, ended, case)
        begun.update(re.findall(r"\] (.*): begun", ended.said))
    twice = sum(count - 1 for count in begun.values())
    found.figures["cells computed twice"] = (
        int(found.figures.get("cells computed twice", 0)) + twice
    )
    found.check(not twice, f"{case}: cells were computed twice: {begun}")
    for _ in range(MOST_STARTS):  # what was left to the other one
        last = bench.run(*words, more=faults.variables)
        _judge(found, last, case)
        if ": begun" not in last.said:
            break
    check_store(found, bench.results, whole, case)
    check_left(found, bench, case)


def _judge(found: Found, ended: Ended, case: str) -> None:
    found.check(ended.code == 0, f"{case}: ended with {ended.code}: {ended.said[-800:]}")
    found.check(ended.clear(), f"{case}: ended unclear: {ended.said[-800:]}")
