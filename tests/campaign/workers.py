"""Many workers that share one sweep of tiny cells, and lose a part of their number on the way.

Half of them are submitted (`lra submit cluster=local`), most others added while those run
(`lra work --workers`), and a few believe that they stand on machines of their own. Workers that
hold a cell are killed or asked to stop at random; those on other machines are frozen for longer
than a claim lives, and come back when their cells were taken over. New workers take their places.
"""

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from lra.runners.isolation.descendants import below
from lra.runners.storage.holders import Holder, look
from tests.campaign import fresh, machine
from tests.campaign.part import Found, Settings
from tests.campaign.shim import Faults
from tests.campaign.sweeps import Bench, Running, check_left, check_store, done_cells, undisturbed

UNBORN = "EOFError: Ran out of input"
"""Ends the one traceback that a log may have: `multiprocessing` prints it of a process whose worker
is killed while it starts it."""
ABOUT = "a sweep shared by many workers, of which a tenth is killed"
TINIEST = (
    "task=induction", "task.length=16", "task.train_examples=32", "task.validation_examples=8",
    "task.test_examples=8", "optim.steps=1", "optim.warmup_steps=0", "optim.batch_size=4",
    "model=linear", "model.backbone.depth=1", "model.backbone.width=8", "model.backbone.heads=1",
    "runner.checkpoint_every_s=0.05", "runner.baselines=false", "logger=none", "report=false",
    "sweep=many",
)  # fmt: skip
AGAIN = "runner.retry=[crashed]"
LIFE_S, SHORT_LIFE_S = 8.0, 3.0
"""Of a claim, for workers that were told so; others wait for five minutes."""
LONGEST_S = 4.0 * 3600


class Crowd:
    """The workers of one sweep."""

    def __init__(self, found: Found, settings: Settings, bench: Bench, cells: int) -> None:
        self.found, self.settings, self.bench = found, settings, bench
        self.draw = settings.draw("workers")
        self.life_s = SHORT_LIFE_S if settings.short else LIFE_S
        self.words = ("-m", *TINIEST, f"seed=range(0,{cells})", AGAIN, f"results={bench.results}")
        self.running: list[Running] = []
        self.strangers: list[Running] = []
        """Those on machines of their own."""
        self.frozen: dict[int, float] = {}
        """When each frozen process goes on, by the monotonic clock."""
        self.started = 0

    def submit(self, workers: int) -> None:
        """Submit workers of this machine, detached."""
        begun = time.monotonic()
        ended = self.bench.run("submit", *self.words, f"cluster.workers={workers}")
        took = round(time.monotonic() - begun, 1)
        self.found.check(ended.code == 0, f"submit ended with {ended.code}: {ended.said[-800:]}")
        self.found.figures.setdefault("seconds of the first submission", took)
        self.started += workers

    def add(self, workers: int) -> None:
        """Start workers of this machine, with claims of a short life."""
        words = ("work", "many", f"--results={self.bench.results}", f"--workers={workers}")
        self.running.append(self.bench.start(*words, prepare=self._short_claims()))
        self.started += workers

    def add_stranger(self) -> None:
        """Start one worker on a machine of its own."""
        self.started += 1
        faults = Faults(self.bench.folder / f"host-{self.started}", self.bench.results)
        faults.host(1000 + self.started)
        words = ("work", "many", f"--results={self.bench.results}", f"--name=host-{self.started}")
        prepare = self._short_claims()
        self.strangers.append(self.bench.start(*words, prepare=prepare, more=faults.variables))

    def _short_claims(self) -> Callable[[], object]:
        return partial(fresh.begin, partial(fresh.with_short_claims, 1.0, self.life_s))

    def holders(self) -> list[Holder]:
        """Return who holds a cell just now."""
        found = []
        for path in (self.bench.results / "claims").glob("*"):
            with suppress(OSError):
                seen = look(path)
                if seen is not None and seen.holder is not None:
                    found.append(seen.holder)
        return [each for each in found if each.pid not in self.frozen]

    def strike(self, kind: str) -> bool:
        """Kill, stop or freeze a worker that holds a cell; return whether there was one."""
        strange = {each.pid for each in self.strangers}
        there = [each for each in self.holders() if kind != "frozen" or each.pid in strange]
        if not there:
            return False
        pid = self.draw.choice(there).pid
        number = {"killed": signal.SIGKILL, "stopped": signal.SIGTERM}.get(kind, signal.SIGSTOP)
        try:
            if kind == "frozen":
                for each in (pid, *below(pid)):
                    os.kill(each, number)
                self.frozen[pid] = time.monotonic() + 3 * self.life_s
            else:
                os.kill(pid, number)
        except ProcessLookupError:
            return False
        self.found.faults[f"worker {kind}"] += 1
        return True

    def thaw(self, *, every: bool = False) -> None:
        """Let frozen workers go on whose time has come."""
        for pid, until in list(self.frozen.items()):
            if every or time.monotonic() >= until:
                for each in (pid, *below(pid)):
                    with suppress(ProcessLookupError):
                        os.kill(each, signal.SIGCONT)
                del self.frozen[pid]

    def lives(self) -> bool:
        """Return whether any worker is left."""
        return bool(machine.processes_in(self.bench.folder))


def run(settings: Settings) -> Found:
    """Share a sweep, lose workers, and compare with an undisturbed one."""
    found = Found("workers")
    cells, workers = settings.few(settings.cells, 6), settings.few(settings.workers, 4)
    begun = time.monotonic()
    words = ("-m", *TINIEST, f"seed=range(0,{cells})", AGAIN)
    whole = undisturbed(settings, *words, longest_s=LONGEST_S)
    found.figures["seconds undisturbed, without workers"] = round(time.monotonic() - begun)
    settings.say(f"undisturbed: {done_cells(whole):,} cells in {time.monotonic() - begun:.0f} s")
    bench = Bench(settings, "shared")
    crowd = Crowd(found, settings, bench, cells)
    begun = time.monotonic()
    _share(crowd, settings, cells, workers)
    found.figures |= {
        "cells": cells,
        "workers": crowd.started,
        "seconds shared": round(time.monotonic() - begun),
    }
    watched = bench.run("watch", "many", f"--results={bench.results}", "--json")
    found.check(watched.code == 0, f"watch ended with {watched.code}: {watched.said[-500:]}")
    if watched.code == 0:
        standing = json.loads(watched.said)
        found.check(standing["done"] == cells, f"watch tells of {standing['done']} cells")
        found.check(not standing["running"], f"watch tells of running cells: {standing['running']}")
    for each in (*crowd.running, *crowd.strangers):
        ended = each.end()
        sound = ended.code in (0, 143, -signal.SIGKILL, 1)
        found.check(sound, f"a worker ended with {ended.code}: {ended.said[-800:]}")
        found.check("Traceback" not in ended.said, f"a worker said {ended.said[-1500:]}")
    for log in bench.results.glob("plans/many/logs/*.log"):
        text = log.read_text(errors="replace")
        told = text.count("Traceback") - text.count(UNBORN)
        found.check(told == 0, f"a worker's log: {text[-1500:]}")
    _clear(crowd)
    check_store(found, bench.results, whole, "after all workers")
    check_left(found, bench, "after all workers", killed=found.faults["worker killed"])
    return found


def _clear(crowd: Crowd) -> None:
    """Have one more worker look once every claim of the killed is old.

    One that is killed after the rows of its cell leaves its claim, which nobody judges before that
    if it stood on another machine.
    """
    left = [path.name for path in (crowd.bench.results / "claims").glob("*")]
    crowd.found.figures["claims of killed workers on complete cells"] = len(left)
    struck = crowd.found.faults["worker killed"]
    few = len(left) <= struck
    crowd.found.check(few, f"{struck} workers were killed, and claims are left: {left[:5]}")
    if left:
        time.sleep(crowd.life_s + 1)
        crowd.add(1)
        ended = crowd.running[-1].end()
        crowd.found.check(ended.code == 0, f"the last worker ended with {ended.code}")


def _share(crowd: Crowd, settings: Settings, cells: int, workers: int) -> None:
    """Start the workers, strike, replace, until every cell has rows and nobody works."""
    found, bench = crowd.found, crowd.bench
    strange = max(1, workers // 20)
    crowd.submit(max(1, workers // 2))
    crowd.add(max(1, workers - workers // 2 - strange))
    for _ in range(strange):
        crowd.add_stranger()
    wanted = ["killed"] * max(1, workers // 10) + ["stopped"] * max(1, workers // 20)
    wanted += ["frozen"] * strange
    crowd.draw.shuffle(wanted)
    total, struck, told, most = len(wanted), 0, 0, 0
    begun = moved = time.monotonic()
    before = 0
    while (done := done_cells(bench.results)) < cells or crowd.lives():
        crowd.thaw(every=done == cells)
        # Strikes are spread over the first three quarters of the cells.
        if wanted and done / cells >= 0.75 * struck / total and crowd.strike(wanted[-1]):
            kind = wanted.pop()
            struck += 1
            if kind == "killed" and crowd.draw.random() < 0.5:
                crowd.add_stranger()
            elif kind == "killed":
                crowd.add(1)
        most = max(most, len(crowd.holders()))
        if done > before:
            moved, before = time.monotonic(), done
        elif settings.short and done < cells and time.monotonic() - moved > crowd.life_s:
            crowd.add(1)  # which judges claims as old long before those that were submitted
            moved = time.monotonic()
        if done - told >= max(1, cells // 10):
            told = done
            settings.say(f"{done:,} of {cells:,} cells, {struck} of {total} strikes")
        if done < cells and not crowd.lives():
            crowd.submit(max(1, workers // 2))
        if time.monotonic() - begun > LONGEST_S:
            found.check(False, f"not done after {LONGEST_S:.0f} s: {done} of {cells} cells")
            break
        # Counting looks into the folder of every cell, which is not to take the workers' processor.
        time.sleep((0.1 + cells / 5_000) * crowd.draw.random())
    # A dozen cells may be done, on a busy machine, before anybody is seen to hold one.
    in_time = not wanted or settings.short
    found.check(in_time, f"the cells were done before {len(wanted)} of {total} strikes")
    found.figures["most cells held at once"] = most
