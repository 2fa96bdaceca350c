"""Sweeps on a real SLURM, whose nodes are lost, whose time is over, and which takes them away.

It starts a SLURM of its own (`single_node.py`), or uses the one that runs already.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from single_node import SingleNode, why_not

from lra.cluster.engine import Resources, WorkerGroup, chosen
from lra.cluster.jobs import JobWatcher
from lra.cluster.slurm import SlurmEngine
from lra.cluster.submissions import record
from lra.runners.store import Store

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.slow,
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
]
HOME = Path(__file__).resolve().parents[2]
WORKER = """
import os, signal, sys, time
def save(*_):
    print("saved", flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
print("on", os.environ["SLURMD_NODENAME"], flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.1)
"""
SWEEP = [
    "model=linear,softmax", "seed=0,1", "task=listops", "task.source=sample", "size=tiny",
    "optim.steps=150", "optim.warmup_steps=0", "logger=none", "report=false",
]  # fmt: skip
CLOCKS = {"s", "B"}
"""Units of what is not the same twice."""
ONE = [WorkerGroup(name="all", count=1, resources=Resources(memory_bytes=2**30, seconds=60))]


@pytest.fixture(scope="module")
def slurm() -> Iterator[SingleNode]:
    """A SLURM with four nodes."""
    one = SingleNode(Path(tempfile.gettempdir()) / "lra-slurm")
    there = one.running()
    if not there:
        one.start(nodes=4, cpus=8, memory_mb=16_000, arrays=4)
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(one.conf)
    yield one
    if before is None:
        del os.environ["SLURM_CONF"]
    else:
        os.environ["SLURM_CONF"] = before
    if not there:
        one.stop()


def until(seen: Callable[[], bool], seconds: float = 120) -> None:
    """Wait for something that SLURM does in its own time."""
    end = time.monotonic() + seconds
    while not seen():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.3)


class Pool:
    """Jobs whose worker waits for a file, and says on which node it is."""

    def __init__(self, folder: Path, *words: str, count: int = 1) -> None:
        self.chosen = chosen(["cluster=slurm", *words])
        self.engine = self.chosen.engine
        assert isinstance(self.engine, SlurmEngine)
        self.plan = folder / "results" / "plans" / "pool"
        self.plan.mkdir(parents=True)
        script = folder / "worker.py"
        script.write_text(WORKER)
        self.end = folder / "end"
        groups = [WorkerGroup(name="all", count=count, resources=ONE[0].resources)]
        self.engine.check(groups)
        self.ids = self.engine.submit(
            self.plan, groups, [sys.executable, str(script), str(self.end)]
        )
        record(self.plan, self.chosen, self.ids, groups)

    def states(self) -> list[str]:
        return [each.state for each in self.engine.states(self.ids).values()]

    def words(self) -> str:
        return "".join(file.read_text() for file in (self.plan / "slurm").glob("*.out"))

    def nodes(self) -> list[str]:
        lines = self.words().splitlines()
        return [line.split()[1] for line in lines if line.startswith("on n")]


def test_workers_beyond_the_limit_of_an_array_run_and_are_stopped(
    slurm: SingleNode, tmp_path: Path
) -> None:
    pool = Pool(tmp_path, "cluster.memory_gb=0.5", count=6)
    until(lambda: len(pool.nodes()) == 6)
    pool.engine.stop(pool.ids)
    until(lambda: set(pool.states()) == {"ended"})
    assert pool.words().count("saved") >= 6
    assert "queued again" not in pool.words()


def test_what_slurm_says_of_the_jobs_is_counted(slurm: SingleNode, tmp_path: Path) -> None:
    pool = Pool(tmp_path, "cluster.sbatch={begin: now+1hour}", count=2)

    def told() -> dict[str, object]:
        (found,) = JobWatcher(pool.plan).look()
        return found.as_json()

    waiting = {"states": {"queued": 2}, "reasons": {"BeginTime": 2}}
    until(lambda: told() == {"cluster": "slurm", "note": "", **waiting})
    pool.engine.stop(pool.ids)
    until(lambda: told()["states"] == {"cancelled": 2})


def test_a_job_whose_time_is_over_saves_and_goes_on_later(
    slurm: SingleNode, tmp_path: Path
) -> None:
    pool = Pool(tmp_path, "cluster.hours=0.02", "cluster.signal_s=45")
    until(lambda: len(pool.nodes()) == 2)
    first, second = pool.words().split("Requeued job")
    assert "saved" in first
    pool.end.touch()
    until(lambda: pool.states() == ["ended"])
    assert "completed successfully" in second + pool.words()


def test_a_job_that_is_preempted_saves_and_is_queued_again(
    slurm: SingleNode, tmp_path: Path
) -> None:
    pool = Pool(tmp_path, "cluster.partition=low")
    until(lambda: len(pool.nodes()) == 1)
    (node,) = pool.nodes()
    greedy = ["srun", "--partition=high", f"--nodelist={node}", "--exclusive", "true"]
    with subprocess.Popen(greedy, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as other:
        until(lambda: "preempted: this job is queued again" in pool.words())
        until(lambda: len(pool.nodes()) == 2)
        assert other.wait(60) == 0
    assert "saved" in pool.words()
    pool.engine.stop(pool.ids)
    until(lambda: pool.states() == ["ended"])


def call(folder: Path, verb: str, *words: str) -> None:
    """Run `lra VERB`, which succeeds."""
    done = subprocess.run(
        [sys.executable, "-m", "lra", verb, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(HOME), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def jobs(form: str) -> list[str]:
    """Return what SLURM says of the workers that run."""
    words = ["squeue", "--noheader", "--array", "--name=lra-mine", "--states=RUNNING"]
    said = subprocess.run([*words, f"--format={form}"], capture_output=True, text=True, check=True)
    return sorted(said.stdout.split())


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of the sweep, in one process."""
    folder = tmp_path_factory.mktemp("quiet")
    call(folder, "run", "-m", *SWEEP, "results=results", "sweep=mine")
    return folder / "results"


def test_rows_after_a_lost_node_are_those_of_a_quiet_run(
    slurm: SingleNode, quiet: Path, tmp_path: Path
) -> None:
    cluster = ["cluster=slurm", "cluster.workers=3", "cluster.memory_gb=9"]  # one to a node
    call(tmp_path, "submit", *cluster, *SWEEP, "results=busy", "sweep=mine")
    busy = tmp_path / "busy"
    until(lambda: len(Store(busy).claims()) >= 2 and len(set(jobs("%N"))) > 1)
    lost = jobs("%N")[0]
    slurm.lose(lost)
    down = ["scontrol", "update", f"nodename={lost}", "state=down", "reason=lost"]
    subprocess.run(down, check=True)
    try:
        until(lambda: {*finished(busy)} == {*finished(quiet)}, 300)
    finally:
        slurm.back(lost)
        subprocess.run(["scancel", "--name=lra-mine"], check=True)
        subprocess.run(["scontrol", "update", f"nodename={lost}", "state=resume"], check=False)
    assert len(finished(quiet)) == 4
    assert numbers(busy) == numbers(quiet)
    assert min(map(len, numbers(quiet).values())) > 5
    until(lambda: not jobs("%i"))


def test_rows_of_a_changing_number_of_workers_are_those_of_a_quiet_run(
    slurm: SingleNode, quiet: Path, tmp_path: Path
) -> None:
    busy, given = tmp_path / "busy", ["cluster=slurm", "cluster.memory_gb=3", "results=busy"]
    try:
        call(tmp_path, "submit", *given, "cluster.workers=1", *SWEEP, "sweep=mine")
        until(lambda: bool(Store(busy).claims()))
        (first,) = jobs("%i")
        call(tmp_path, "submit", *given, "cluster.workers=2", *SWEEP, "sweep=mine")
        until(lambda: len(jobs("%i")) == 3)
        subprocess.run(["scancel", first], check=True)
        until(lambda: first not in jobs("%i"))
        until(lambda: {*finished(busy)} == {*finished(quiet)}, 300)
        until(lambda: not jobs("%i"))
    finally:
        subprocess.run(["scancel", "--name=lra-mine"], check=True)
    assert numbers(busy) == numbers(quiet)
    ends = [log.read_text().rpartition("worker ends with ")[2][:3] for log in
            busy.glob("plans/mine/logs/*.log")]  # fmt: skip
    assert sorted(ends) == ["0 a", "0 a", "143"]
    assert Store(busy).claims() == {}


def finished(root: Path) -> list[Path]:
    """Return the files of rows, below the folder of cells: one for each cell that is done."""
    cells = root / "cells"
    return [file.relative_to(cells) for file in cells.rglob("rows-*.jsonl")]


def numbers(root: Path) -> dict[Path, list[tuple[object, ...]]]:
    """Return what each cell has measured, but for what was read off a clock or a meter."""
    found = {}
    for file in finished(root):
        lines = (root / "cells" / file).read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        found[file] = [
            (row["metric"], row["step"], row["value"], row["status"])
            for row in rows
            if row["unit"] not in CLOCKS and row["metric"] not in ("data_wait", "waiting_share")
        ]
    return found
