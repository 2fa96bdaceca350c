"""One search by one command, by 1, 2 and 4 workers, and killed at random moments: one choice.

Its trials, rungs and finals follow from rows, so that the whole store is compared, to the bit.
"""

import os
import random
import signal
import time
from contextlib import suppress

from lra.runners.isolation.descendants import below
from tests.campaign import machine
from tests.campaign.part import Found, Settings
from tests.campaign.sweeps import (
    TINY,
    Bench,
    check_left,
    check_store,
    done_cells,
    undisturbed,
)

ABOUT = "one search by 1, 2 and 4 workers, and SIGKILL of all of it at random moments"
SEARCH = (
    "-m", *TINY, "search=halton", "search.rungs=[0.5]", "search.keep=0.5",
    "search.final_seeds=[1]", "sweep=searched",
    "optim.peak_learning_rate=tag(log, interval(1e-4, 1e-1))",
)  # fmt: skip
LONG, SHORT = (
    (*SEARCH, "search.trials=4", "model=linear,performer"),
    (*SEARCH, "search.trials=2", "model=performer"),
)
LONGEST_S = 900.0
LATER_S = 2.0
"""After a cell has ended, in which a kill comes."""


def run(settings: Settings) -> Found:
    """Work on the search in each way, and compare."""
    found = Found("searches")
    search = SHORT if settings.short else LONG
    whole = undisturbed(settings, *search)
    total = done_cells(whole)
    found.figures["cells"] = total
    for workers in (2,) if settings.short else (1, 2, 4):
        settings.say(f"{workers} workers")
        bench = Bench(settings, f"workers-{workers}", search)
        _submit(found, bench, workers)
        deadline = time.monotonic() + LONGEST_S
        while machine.left_processes(bench.folder) and time.monotonic() < deadline:
            time.sleep(0.1)
        check_store(found, bench.results, whole, f"{workers} workers")
        check_left(found, bench, f"{workers} workers")
    kills = settings.few(10, 1)
    for verb in ("run",) if settings.short else ("run", "work"):
        settings.say(f"{kills} kills of lra {verb}")
        bench = Bench(settings, f"killed-{verb}", search)
        words: tuple[str, ...] = ("run", *search, f"results={bench.results}")
        if verb == "work":
            _submit(found, bench, 1)
            for pid in machine.processes_in(bench.folder):
                _kill(pid)
            words = ("work", "searched", f"--results={bench.results}")
        moments = [total * number / (kills + 1) for number in range(kills)]
        _struck(found, bench, words, moments, settings.draw("searches", verb))
        check_store(found, bench.results, whole, f"{kills} kills of lra {verb}")
        check_left(found, bench, f"{kills} kills of lra {verb}", killed=kills + 1)
    return found


def _submit(found: Found, bench: Bench, workers: int) -> None:
    words = (*bench.words, f"results={bench.results}", f"cluster.workers={workers}")
    ended = bench.run("submit", *words)
    found.check(ended.code == 0, f"submit ended with {ended.code}: {ended.said[-800:]}")


def _struck(
    found: Found, bench: Bench, words: tuple[str, ...], moments: list[float], draw: random.Random
) -> None:
    """Start a command again after each kill, and let it end in the end.

    Args:
        moments: how many cells have rows before each kill, at least.
    """
    for wanted in moments:
        running = bench.start(*words)
        while not running.over() and done_cells(bench.results) < wanted:
            time.sleep(0.02)
        time.sleep(LATER_S * draw.random())
        if not running.over():
            _kill(running.pid)
            found.faults[f"SIGKILL of lra {words[0]} and all below"] += 1
        running.end()
    last = bench.run(*words)
    found.check(last.code == 0, f"in peace it ended with {last.code}: {last.said[-800:]}")
    found.check("Traceback" not in last.said, f"in peace it said {last.said[-800:]}")


def _kill(pid: int) -> None:
    for each in (pid, *below(pid)):
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
