"""Lost nodes, cancelled and requeued jobs of a real SLURM, while its workers share a sweep.

The controller and the nodes, each a slurmd, run on this machine: `tests/slurm/single_node.py`.
"""

import os
import subprocess
import tempfile
import time
from pathlib import Path

from tests.campaign.part import Found, LeftOut, Settings
from tests.campaign.sweeps import TINY, Bench, check_left, check_store, done_cells, undisturbed
from tests.slurm.single_node import SingleNode, why_not

ABOUT = "lost nodes, cancelled and requeued jobs of a real SLURM"
WORDS = (*TINY, "optim.steps=200", "model=linear,softmax", "sweep=many", "runner.retry=[crashed]")
WORKERS, NODES = 6, 4
LONGEST_S = 1800.0


def run(settings: Settings) -> Found:
    """Share a sweep under SLURM, and strike."""
    refusal = why_not()
    if refusal is not None:
        raise LeftOut(refusal)
    found = Found("slurm")
    words = ("-m", *WORDS, f"seed=range(0,{2 * _strikes(settings)})")  # of two models
    whole = undisturbed(settings, *words)
    one = SingleNode(Path(tempfile.gettempdir()) / "lra-slurm-campaign")
    one.start(nodes=NODES, cpus=8, memory_mb=16_000, arrays=4)
    os.environ["SLURM_CONF"] = str(one.conf)
    try:
        bench = Bench(settings, "shared")
        _share(found, settings, bench, one, words)
    finally:
        one.stop()
        del os.environ["SLURM_CONF"]
    check_store(found, bench.results, whole, "after all of SLURM")
    check_left(found, bench, "after all of SLURM", killed=found.faults["lost node"] * WORKERS)
    return found


def _strikes(settings: Settings) -> int:
    return settings.few(12, 2)


def _share(
    found: Found, settings: Settings, bench: Bench, one: SingleNode, words: tuple[str, ...]
) -> None:
    draw, strikes = settings.draw("slurm"), _strikes(settings)
    cells = 4 * strikes
    submit = ("submit", *words, f"results={bench.results}", "cluster=slurm",
              f"cluster.workers={WORKERS}", "cluster.memory_gb=3")  # fmt: skip
    ended = bench.run(*submit)
    found.check(ended.code == 0, f"submit ended with {ended.code}: {ended.said[-800:]}")
    begun, struck = time.monotonic(), 0
    while (done := done_cells(bench.results)) < cells:
        if time.monotonic() - begun > LONGEST_S:
            found.check(False, f"not done after {LONGEST_S:.0f} s: {done} of {cells} cells")
            break
        jobs = _asked("squeue", "--noheader", "--states=RUNNING", "--array", "--format=%i %N")
        if not _asked("squeue", "--noheader", "--array", "--format=%i"):
            bench.run(*submit)  # every worker is gone: the same command again
        elif jobs and struck < strikes and done / cells >= 0.75 * struck / strikes:
            job, node = draw.choice(jobs).split()
            kind = draw.choice(("lost node", "job cancelled", "job requeued"))
            settings.say(f"{kind}: {node if kind == 'lost node' else job}; {done} of {cells} cells")
            if kind == "lost node":
                one.lose(node)
                _asked("scontrol", "update", f"nodename={node}", "state=down", "reason=lost")
                time.sleep(3 * draw.random())
                one.back(node)
                _asked("scontrol", "update", f"nodename={node}", "state=resume")
            elif kind == "job cancelled":
                _asked("scancel", job)
            else:
                _asked("scontrol", "requeue", job)
            found.faults[kind] += 1
            struck += 1
        time.sleep(1.0)
    found.check(struck == strikes, f"the cells were done before {strikes - struck} strikes")
    found.figures |= {"cells": cells, "workers": WORKERS, "nodes": NODES}
    deadline = time.monotonic() + 120
    while _asked("squeue", "--noheader", "--format=%i") and time.monotonic() < deadline:
        time.sleep(1.0)
    left = _asked("squeue", "--noheader", "--format=%i %T")
    found.check(not left, f"jobs are left: {left}")


def _asked(*words: str) -> list[str]:
    """Return the lines that a command of SLURM prints."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]
