"""One sweep in four ways: by one command, by workers here, by SLURM's, and in two processes a cell.

The rows of the first three are equal to the bit, of workers under SLURM although a node is lost.
Two processes add up in another order, in float32: their rows are the same, and the values close.
"""

import json
import time
from pathlib import Path

import pandas as pd

from lra.runners.store import read_rows
from tests.campaign import machine
from tests.campaign.part import Found, Settings
from tests.campaign.slurm import WORKERS, cluster, share
from tests.campaign.sweeps import TINY, Bench, check_left, check_store, done_cells, undisturbed
from tests.lra.sweep.small_sweeps import NOISY

ABOUT = "one sweep by one command, by workers, by SLURM with a lost node, in two processes a cell"
OTHERWISE = ("model.backbone.dropout", "optim.steps", "hardware.training_processes")
WORDS = (
    *(word for word in TINY if not word.startswith(OTHERWISE)), "model.backbone.dropout=0",
    "optim.steps=120", "model=linear,softmax,lstm", "sweep=everywhere", "runner.retry=[crashed]",
)  # fmt: skip
"""Without dropout, which each process draws for its own rows."""
CLOSE = 1e-5
"""Of float32 after 120 steps, relative: what two orders of a sum may come to."""
OF_PROCESSES = ("tokens_per_second", "tokens_per_second_per_device", "bytes_sent_per_step")
LONGEST_S = 900.0


def run(settings: Settings) -> Found:
    """Run the sweep in each way, and compare."""
    found, seeds = Found("everywhere"), settings.few(4, 2)
    words, cells = ("-m", *WORDS, f"seed=range(0,{seeds})"), 3 * seeds
    with cluster() as one:
        whole = undisturbed(settings, *words)

        settings.say("two workers of this machine")
        local = Bench(settings, "local")
        submit = ("submit", *words, f"results={local.results}", "cluster=local")
        ended = local.run(*submit, "cluster.workers=2")
        found.check(ended.code == 0, f"submit ended with {ended.code}: {ended.said[-800:]}")
        _wait(found, local, cells)
        check_store(found, local.results, whole, "workers here")

        settings.say("workers of SLURM, a node is lost")
        slurm = Bench(settings, "slurm")
        share(found, settings, slurm, one, words, cells=cells, strikes=1, kinds=("lost node",))
        check_store(found, slurm.results, whole, "SLURM with a lost node")
        check_left(found, slurm, "SLURM with a lost node", killed=WORKERS)

    settings.say("two processes a cell")
    two = Bench(settings, "two")
    ended = two.run("run", *words, f"results={two.results}", "hardware.processes=2")
    found.check(ended.code == 0, f"two processes ended with {ended.code}: {ended.said[-800:]}")
    _compare(found, two.results, whole)
    for bench, case in ((local, "workers here"), (two, "two processes")):
        check_left(found, bench, case)
    found.figures |= {"cells": cells, "ways": 4}
    return found


def _wait(found: Found, bench: Bench, cells: int) -> None:
    """Wait until the workers of this machine have done all, and ended by themselves."""
    deadline = time.monotonic() + LONGEST_S
    while machine.left_processes(bench.folder) and time.monotonic() < deadline:
        time.sleep(1.0)
    done = done_cells(bench.results)
    found.check(done == cells, f"workers here: {done} of {cells} cells after {LONGEST_S:.0f} s")


def _compare(found: Found, results: Path, whole: Path) -> None:
    """Compare rows of two processes with those of one: the same, and close."""
    two, one = (_rows(root) for root in (results, whole))
    more = two.index.difference(one.index)
    foreign = {metric for _, metric, _, _ in more} - {*OF_PROCESSES}
    found.check(not foreign, f"two processes: rows that one has not: {sorted(foreign)}")
    lost = one.index.difference(two.index)
    found.check(lost.empty, f"two processes: {len(lost)} rows are lost: {[*lost[:3]]}")
    same = one.index.intersection(two.index)
    found.check(two.loc[same, "processes"].eq("2").all(), "two processes: rows do not say so")
    mine, theirs = two.loc[same, "value"], one.loc[same, "value"]
    far = ((mine - theirs).abs() / theirs.abs().clip(lower=1e-6)).max()
    found.check(far <= CLOSE, f"two processes: values differ by {far:.1e}; wanted {CLOSE:g}")
    found.figures |= {"rows compared of two processes": len(same), "far by at most": f"{far:.1e}"}


def _rows(results: Path) -> pd.DataFrame:
    """Return the rows but times, by what they are of."""
    rows = read_rows(results)
    rows = rows[~rows["metric"].isin(NOISY)].copy()
    labels = [dict(each) for each in rows["labels"]]
    rows["processes"] = [each.pop("processes", "1") for each in labels]
    rows["labels"] = [json.dumps(each, sort_keys=True) for each in labels]
    return rows.set_index(["cell", "metric", "step", "labels"]).sort_index()
