"""Lost nodes, cancelled and requeued jobs of a real SLURM, while its workers share a sweep.

The controller and the nodes, each a slurmd, run on this machine: `tests/slurm/single_node.py`. A
second cluster has jobs of the same numbers, another user asks for the sweep, the shell's variables
are those of a profile and of an interactive job, and each job has a TMPDIR of its own.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.campaign.part import Found, LeftOut, Settings
from tests.campaign.sweeps import (
    TINY,
    Bench,
    Ended,
    check_left,
    check_store,
    done_cells,
    undisturbed,
)
from tests.slurm.single_node import SingleNode, why_not

ABOUT = "lost nodes, cancelled and requeued jobs of a real SLURM, beside another cluster and user"
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
PROFILE = {
    "SBATCH_PARTITION": "short", "SBATCH_TIMELIMIT": "1", "SBATCH_ACCOUNT": "nobodys",
    "SBATCH_NO_REQUEUE": "1", "SBATCH_ARRAY_INX": "0-9", "SBATCH_WAIT": "1",
    "SLURM_MEM_PER_CPU": "100", "SLURM_CPUS_PER_TASK": "3", "SRUN_CPUS_PER_TASK": "5",
    "SQUEUE_PARTITION": "short", "SQUEUE_FORMAT": "%u", "SCANCEL_INTERACTIVE": "1",
}  # fmt: skip
STRANGERS = 60
"""Jobs of the other cluster, with the first numbers: more than the sweep has."""
STANDS, REFUSED = 3, 2
"""Exit codes of a sweep of which cells are left, and of what cannot be done here."""
NOBODY = 65534
CAPABLE = "+dac_read_search,+dac_override"
"""Another user who can read what is root's here, as on a shared folder."""


def run(settings: Settings) -> Found:
    """Share a sweep under SLURM, and strike."""
    found, strikes = Found("slurm"), settings.few(12, 2)
    with cluster() as one, other_cluster() as far:
        words = ("-m", *WORDS, f"seed=range(0,{2 * strikes})")  # of two models
        whole = undisturbed(settings, *words)
        bench = Bench(settings, "shared")
        jobs = Path(tempfile.mkdtemp(prefix="lra-jobs-"))
        own = f"{jobs}/$SLURM_JOB_ID"
        site = ("cluster.partition=main", "cluster.hours=1",
                f"cluster.setup=['mkdir -p {own}', 'export TMPDIR={own}']")  # fmt: skip
        share(
            found, settings, bench, one, (*words, *site), cells=4 * strikes, strikes=strikes,
            more=PROFILE,
            others=[lambda: _from_far(found, bench, far), lambda: _by_nobody(found, bench)],
        )  # fmt: skip
        found.check(len(_jobs_of(far)) == STRANGERS, "jobs of the other cluster were ended")
        folders = sum(1 for _ in jobs.iterdir())
        found.check(folders >= WORKERS, f"{folders} jobs had a TMPDIR of their own")
        found.figures |= {"jobs with a TMPDIR of their own": folders, "variables": len(PROFILE)}
        shutil.rmtree(jobs)
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


@contextmanager
def other_cluster() -> Iterator[SingleNode]:
    """Start a second SLURM, whose jobs have the numbers of the first one's."""
    far = SingleNode(Path(tempfile.gettempdir()) / "lra-slurm-far", name="far", port=17817)
    far.start(nodes=2, cpus=8, memory_mb=16_000, arrays=4)
    try:
        for _ in range(STRANGERS):
            sleep = ["sbatch", "--wrap=sleep 7200", "--output=/dev/null"]
            subprocess.run(sleep, env=far.environment, capture_output=True, check=True)
        yield far
    finally:
        far.stop()


def _jobs_of(far: SingleNode) -> list[str]:
    asked = ["squeue", "--noheader", "--format=%i"]
    done = subprocess.run(asked, env=far.environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


def _from_far(found: Found, bench: Bench, far: SingleNode) -> None:
    """Watch and stop the sweep from the other cluster: its jobs are left alone."""
    for code, words in _questions(bench):
        ended = bench.run(*words, more={"SLURM_CONF": str(far.conf)})
        found.faults["asked from another cluster"] += 1
        sound = ended.code == code and "of the cluster 'lra', and this is 'far'" in ended.said
        found.check(sound, f"{words[0]} from far: {ended.code}, {ended.said[-800:]}")
    found.check(len(_jobs_of(far)) == STRANGERS, "--stop ended jobs of another cluster")


def _by_nobody(found: Found, bench: Bench) -> None:
    """Watch and stop the sweep as another user, who sees the jobs and may end none."""
    for code, words in _questions(bench):
        done = subprocess.run(
            ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
             f"--inh-caps={CAPABLE}", f"--ambient-caps={CAPABLE}",
             sys.executable, "-m", "lra", *words],
            cwd=bench.folder, env=bench.environment({"HOME": str(bench.folder / "home")}),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        ended = Ended(done.returncode, done.stdout)
        found.faults["asked by another user"] += 1
        wanted = "slurm: jobs" if code == STANDS else "denied; the user whose job it is can end it"
        sound = ended.code == code and wanted in ended.said
        found.check(sound, f"{words[0]} by nobody: {ended.code}, {ended.said[-800:]}")


def _questions(bench: Bench) -> list[tuple[int, tuple[str, ...]]]:
    """Return what is asked of a sweep that runs, with the codes that are wanted."""
    results = f"--results={bench.results}"
    return [(STANDS, ("watch", "many", results, "--once")),
            (REFUSED, ("submit", "--stop", "many", results))]  # fmt: skip


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
    more: Mapping[str, str] | None = None,
    others: Sequence[Callable[[], None]] = (),
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
        more: Variables of the submissions.
        others: Called one after the other while jobs run, after a strike each.
    """
    draw = settings.draw("slurm")
    submit = ("submit", *words, f"results={bench.results}", "cluster=slurm",
              f"cluster.workers={WORKERS}", "cluster.memory_gb=3")  # fmt: skip
    ended = bench.run(*submit, more=more)
    found.check(ended.code == 0, f"submit ended with {ended.code}: {ended.said[-800:]}")
    begun, struck, left_to_ask = time.monotonic(), 0, [*others]
    while (done := done_cells(bench.results)) < cells:
        if time.monotonic() - begun > LONGEST_S:
            found.check(False, f"not done after {LONGEST_S:.0f} s: {done} of {cells} cells")
            break
        jobs = _asked("squeue", "--noheader", "--states=RUNNING", "--array", "--format=%i %N")
        if not _asked("squeue", "--noheader", "--array", "--format=%i"):
            bench.run(*submit, more=more)  # every worker is gone: the same command again
        elif jobs and struck and left_to_ask:
            left_to_ask.pop()()
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
    found.check(not left_to_ask, f"the cells were done before {len(left_to_ask)} questions")
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
