"""Lost nodes, cancelled and requeued jobs of a real SLURM, while its workers share a sweep.

The controller and the nodes, each a slurmd, run on this machine: `tests/slurm/single_node.py`.
"""

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.campaign.part import Found, LeftOut, Settings
from tests.campaign.sweeps import TINY, Bench, check_left, check_store, done_cells, undisturbed
from tests.slurm.single_node import SingleNode, why_not

ABOUT = "lost nodes, cancelled and requeued jobs of a real SLURM"
TRAINED = tuple(word for word in TINY if not word.startswith("optim.steps"))
WORDS = (
    *TRAINED,
    "optim.steps=200",
    "model=linear,softmax",
    "sweep=many",
    "runner.retry=[crashed]",
)
WORKERS, NODES = 6, 4
LONGEST_S = 1800.0


KINDS = ("lost node", "job cancelled", "job requeued")


def run(settings: Settings) -> Found:
    """Share a sweep under SLURM, and strike."""
    found, strikes = Found("slurm"), settings.few(12, 2)
    with cluster() as one:
        words = ("-m", *WORDS, f"seed=range(0,{2 * strikes})")  # of two models
        whole = undisturbed(settings, *words)
        bench = Bench(settings, "shared")
        share(found, settings, bench, one, words, cells=4 * strikes, strikes=strikes)
    check_store(found, bench.results, whole, "after all of SLURM")
    check_left(found, bench, "after all of SLURM", killed=found.faults["lost node"] * WORKERS)
    return found


@contextmanager
def cluster() -> Iterator[SingleNode]:
    """Start a SLURM on this machine, which the commands of a bench find.

    Raises:
        LeftOut: there is none to start.
    """
    refusal = why_not()
    if refusal is not None:
        raise LeftOut(refusal)
    one = SingleNode(Path(tempfile.gettempdir()) / "lra-slurm-campaign")
    one.start(nodes=NODES, cpus=8, memory_mb=16_000, arrays=4)
    os.environ["SLURM_CONF"] = str(one.conf)
    try:
        yield one
    finally:
        one.stop()
        del os.environ["SLURM_CONF"]


def share(
    found: Found,
    settings: Settings,
    bench: Bench,
    one: SingleNode,
    words: tuple[str, ...],
    *,
    cells: int,
    strikes: int,
    kinds: Sequence[str] = KINDS,
) -> None:
    """Have workers of SLURM share a sweep, strike, and wait for its end and theirs.

    Args:
        found: Notes what happens.
        settings: Of the part.
        bench: Whose results are worked on.
        one: The cluster.
        words: Of the sweep.
        cells: In all.
        strikes: How often.
        kinds: Of faults, drawn from.
    """
    draw = settings.draw("slurm")
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
        elif jobs and struck < strikes and done > 0.75 * cells * struck / strikes:
            job, node = draw.choice(jobs).split()
            kind = draw.choice(kinds)
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
