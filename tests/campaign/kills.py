"""Kills at random of everything that a sweep consists of, hundreds in one sweep.

SIGKILL meets the parent, one cell, every cell, the fork server, or what else the parent has
started: the tracker of shared memory. The sweep is started again whenever its parent is gone, until
all kills were applied; then it ends in peace.
"""

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

from lra.runners.isolation.descendants import below
from tests.campaign.part import Found, Settings
from tests.campaign.sweeps import (
    LONGEST_S,
    TINY,
    Bench,
    Ended,
    Running,
    check_left,
    check_store,
    done_cells,
    undisturbed,
)

ABOUT = "SIGKILL of parents, cells, fork servers"
MODELS = "linear,performer,softmax"
# A cell whose fork server was killed as well ends in a way that nobody sees: it has crashed.
AGAIN = "runner.retry=[crashed]"
KILLS_PER_CELL = 5


def run(settings: Settings) -> Found:
    """Kill in sweeps of one process to a cell."""
    found = Found("kills")
    seeds = max(2, settings.kills // (KILLS_PER_CELL * 3))
    words = ("-m", *TINY, f"model={MODELS}", f"seed=range(0,{seeds})", "logger=tensorboard")
    campaign(found, settings, words, settings.kills)
    return found


def campaign(found: Found, settings: Settings, words: tuple[str, ...], kills: int) -> None:
    """Apply so many kills to one sweep, and compare it with an undisturbed one."""
    whole = undisturbed(settings, *words, AGAIN)
    bench = Bench(settings, "killed")
    draw = settings.draw(found.part)
    total = done_cells(whole)
    found.figures["cells"] = total
    struck = parents = starts = 0
    running: Running | None = None
    begun = time.monotonic()
    while struck < kills:
        if running is None or running.over():
            if running is not None:
                parents += _judge(found, running.end())
            running = bench.start("run", *words, AGAIN, f"results={bench.results}")
            starts += 1
        if not _paced(running, bench, draw, struck / kills, total):
            continue
        target = _strike(running, draw)
        if target:
            struck += 1
            found.faults[f"SIGKILL of {target}"] += 1
            if struck % 25 == 0:
                done = done_cells(bench.results)
                settings.say(f"{struck} of {kills} kills, {done} of {total} cells have rows")
        if time.monotonic() - begun > LONGEST_S + 10 * kills:
            found.check(False, f"stands still after {struck} kills")
            break
    if running is not None:
        parents += _judge(found, running.end())
    left = total - done_cells(bench.results)
    last = bench.run("run", *words, AGAIN, f"results={bench.results}")
    found.check(last.code == 0, f"the sweep in peace ended with {last.code}: {last.last}")
    found.check(last.clear(), f"the sweep in peace ended unclear: {last.said[-600:]}")
    found.figures |= {"starts": starts + 1, "cells left by the last kill": left}
    check_store(found, bench.results, whole, "after all kills")
    check_left(found, bench, "after all kills", killed=parents)
    again = bench.run("run", *words, AGAIN, f"results={bench.results}")
    found.check("are complete already" in again.said, f"a finished sweep ran again: {again.last}")


def _judge(found: Found, ended: Ended) -> int:
    """Check how a start ended; return 1 where its parent was killed."""
    if ended.code == -signal.SIGKILL:
        return 1
    found.check(ended.code in (0, 1), f"a start ended with {ended.code}: {ended.said[-600:]}")
    found.check(ended.clear(), f"a start ended unclear: {ended.said[-600:]}")
    found.check(
        ended.code == 0 or "crashed" in ended.said or "stopped" in ended.said,
        f"exit code 1 and no word of a crash: {ended.said[-600:]}",
    )
    return 0


def _paced(running: Running, bench: Bench, draw: random.Random, struck: float, total: int) -> bool:
    """Wait for the moment of the next kill; False where the sweep ended before.

    The share of cells with rows stays near the share of kills, so that neither a sweep ends before
    its kills, nor kills leave it no time.
    """
    wait = draw.choice((0.0, 0.1, 0.5)) * draw.random()
    deadline = time.monotonic() + wait
    among_cells = draw.random() < 0.8  # else also while it plans, and imports
    while not running.over():
        # Two thirds: the last cells meet kills as well.
        ahead = done_cells(bench.results) / total >= 0.67 * struck
        late = time.monotonic() >= deadline
        if late and (ahead or draw.random() < 0.002):
            groups = members(running.pid)
            if groups["cell"] or (not among_cells and any(groups.values())):
                return True
        time.sleep(0.01)
    return False


def _strike(running: Running, draw: random.Random) -> str:
    """Kill something; return what it was, or nothing where it was gone."""
    groups = members(running.pid)
    cells = groups["cell"]
    found = {
        "a parent": [running.pid],
        "a cell": draw.sample(cells, min(1, len(cells))),
        "every cell": cells if len(cells) > 1 else [],
        "a fork server": groups["fork server"],
        "a tracker": draw.sample(groups["helper"], min(1, len(groups["helper"]))),
        "everything": [running.pid, *(pid for group in groups.values() for pid in group)],
    }
    wanted = draw.choice([name for name, pids in found.items() if pids])
    chosen = [*found[wanted]]
    draw.shuffle(chosen)
    hit = 0
    for pid in chosen:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            hit += 1
    return wanted if hit else ""


def members(parent: int) -> dict[str, list[int]]:
    """Return the processes of a sweep by what they are.

    A cell leads a process group of its own; the fork server is the parent of cells.
    """
    cells, servers, helpers = [], set(), []
    every = below(parent)
    for pid in every:
        with suppress(ProcessLookupError, FileNotFoundError):
            if os.getpgid(pid) == pid:
                cells.append(pid)
                above = _parent(pid)
                if above in every:
                    servers.add(above)
    for pid in every - servers - {*cells}:
        with suppress(ProcessLookupError, FileNotFoundError):
            if _parent(pid) == parent:
                helpers.append(pid)
    return {"cell": sorted(cells), "fork server": sorted(servers), "helper": sorted(helpers)}


def _parent(pid: int) -> int:
    text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    return int(text.rpartition(")")[2].split()[1])
