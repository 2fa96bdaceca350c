"""Two sweeps, and two versions of the code, in one store at the same time."""

import re
import shutil
import threading
import time
from collections import Counter
from pathlib import Path

from lra.runners.storage.formats import fingerprint_of
from tests.campaign.kills import members
from tests.campaign.part import Found, Settings
from tests.campaign.sweeps import (
    TINY,
    Bench,
    Ended,
    check_left,
    check_store,
    done_cells,
    undisturbed,
)
from tests.lra_process import HOME

ABOUT = "two sweeps, and two versions of the code, in one store at once"
MODELS = ("-m", *TINY, "model=linear,softmax")
CELLS = re.compile(r"(\d+) cells in .*: (\d+) done, (\d+) to do")
MOST_STARTS = 10


def run(settings: Settings) -> Found:
    """Let sweeps meet in a store."""
    found = Found("together")
    both = (*MODELS, "seed=range(0,6)", "sweep=all")
    whole = undisturbed(settings, *both)
    found.figures["cells in each store"] = done_cells(whole)
    for turn in range(settings.few(20, 1)):
        _two_sweeps(found, settings, turn, whole)
    settings.say("two sweeps: done")
    other = _changed(settings.folder / "changed")
    for turn in range(settings.few(3, 0)):
        _two_versions(found, settings, turn, whole, other)
    return found


def _two_sweeps(found: Found, settings: Settings, turn: int, whole: Path) -> None:
    """Two sweeps of which some cells are the same; of both, one may be killed."""
    draw = settings.draw("together", turn)
    bench = Bench(settings, f"sweeps-{turn}")
    case = f"two sweeps, {turn}"
    first, second = draw.randrange(3, 6), draw.randrange(0, 3)
    parts = (f"seed=range(0,{first})", f"seed=range({second},6)")
    words = [("run", *MODELS, part, f"results={bench.results}", f"sweep={name}")
             for part, name in zip(parts, ("one", "two"), strict=True)]  # fmt: skip
    running = []
    for each in words:
        running.append(bench.start(*each))
        time.sleep(0.5 * draw.random())
    found.faults["sweep beside another"] += 2
    killed = 0
    if draw.random() < 0.5:
        time.sleep(3 * draw.random())
        victim = draw.choice(running)
        if not victim.over() and members(victim.pid):
            victim.program.send_signal(9)
            found.faults["one of two sweeps killed"] += 1
            killed = 1
    begun: Counter[str] = Counter()
    for each in running:
        ended = each.end()
        if ended.code != -9:
            _judge(found, ended, case)
        begun.update(re.findall(r"\] (.*): begun", ended.said))
    if not killed:
        twice = sum(count - 1 for count in begun.values())
        before = int(found.figures.get("cells computed twice", 0))
        found.figures["cells computed twice"] = before + twice
    for each in words:
        for _ in range(MOST_STARTS):
            ended = bench.run(*each)
            _judge(found, ended, case)
            if ": begun" not in ended.said:
                break
    for name, part in zip(("one", "two"), parts, strict=True):
        low, high = map(int, re.findall(r"\d+", part))
        listed = len(list((bench.results / "sweeps" / name).iterdir()))
        found.check(listed == 2 * (high - low), f"{case}: sweep {name} lists {listed} cells")
    check_store(found, bench.results, whole, case)
    check_left(found, bench, case, killed=killed)


def _judge(found: Found, ended: Ended, case: str) -> None:
    found.check(ended.code == 0, f"{case}: ended with {ended.code}: {ended.said[-800:]}")
    found.check(ended.clear(), f"{case}: ended unclear: {ended.said[-800:]}")


def _changed(folder: Path) -> Path:
    """Return a copy of the program with one source changed, in a way that moves no number."""
    for name in ("lra", "models", "tasks", "runners", "reports", "conf"):
        shutil.copytree(HOME / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in folder.glob("models/families/*.py"):
        file.write_text(file.read_text() + '\n_ANOTHER_VERSION = "of the code"\n')
    return folder


def _two_versions(found: Found, settings: Settings, turn: int, whole: Path, other: Path) -> None:
    """Both versions run the same cells at once; each has rows of its own for every cell."""
    bench = Bench(settings, f"versions-{turn}")
    case = f"two versions, {turn}"
    words = (*MODELS, "seed=range(0,6)", "sweep=all", f"results={bench.results}")
    ended: list[Ended] = []
    beside = threading.Thread(target=lambda: ended.append(bench.run_apart(other, "run", *words)))
    beside.start()
    ended.append(bench.run("run", *words))
    beside.join()
    found.faults["version beside another"] += 2
    for each in ended:
        _judge(found, each, case)
    for _ in range(MOST_STARTS):  # what was left to the other version, which has rows of its own
        last = [bench.run("run", *words), bench.run_apart(other, "run", *words)]
        for each in last:
            _judge(found, each, case)
        if not any(": begun" in each.said for each in last):
            break
    check_store(found, bench.results, whole, case, versions=2)
    prints = Counter(fingerprint_of(path) for path in bench.results.glob("cells/*/*/rows-*.jsonl"))
    total = done_cells(whole)
    found.figures["versions of the code"] = 2
    per_family = sum(prints.values())
    found.check(per_family == 2 * total, f"{case}: {per_family} files of rows of {total} cells")
    planned = [bench.run("run", *words, "runner.dry_run=true"),
               bench.run_apart(other, "run", *words, "runner.dry_run=true")]  # fmt: skip
    for each in planned:
        count = CELLS.search(each.said)
        found.check(
            count and count.groups() == (str(total), str(total), "0"),
            f"{case}: not complete for a version: {each.last}",
        )
    check_left(found, bench, case)
