"""Sweeps on a real SLURM, whose nodes are lost, whose time is over, and which takes them away.

It starts a SLURM of its own: `single_node.py`.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from single_node import SingleNode, why_not

from lra.cluster.engine import Resources, WorkerGroup, engine_of
from lra.cluster.jobs import JobWatcher
from lra.cluster.plan import HEAD
from lra.cluster.slurm import SlurmEngine
from lra.cluster.submissions import Note, jobs_of, submissions
from lra.errors import ConfigError
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
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
    signal.signal(number, save)
print("on", os.environ["SLURMD_NODENAME"], flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.1)
"""
SWEEP = [
    "model=linear,softmax", "seed=0,1", "task=listops", "task.source=sample", "size=tiny",
    "optim.steps=150", "optim.warmup_steps=0", "runner.baselines=false", "logger=none",
    "report=false",
]  # fmt: skip
SEARCH = [
    "model=linear,softmax", "task=listops", "task.source=sample", "size=tiny", "optim.steps=60",
    "optim.warmup_steps=0", "logger=none", "report=false", "search=halton", "search.trials=3",
    "search.rungs=[0.5]", "search.keep=0.5", "search.final_seeds=[1]", "runner.baselines=false",
    "optim.peak_learning_rate=tag(log, interval(1e-4, 1e-1))",
]  # fmt: skip
CLOCKS = {"s", "B"}
"""Units of what is not the same twice."""
ONE = [WorkerGroup(name="all", count=1, resources=Resources(memory_bytes=2**30, seconds=60))]


@pytest.fixture(scope="module")
def slurm() -> Iterator[SingleNode]:
    """A SLURM with four nodes."""
    one = SingleNode(Path(tempfile.gettempdir()) / "lra-slurm")
    one.start(nodes=4, cpus=8, memory_mb=16_000, arrays=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(one.conf))
        yield one
    one.stop()


def until(seen: Callable[[], bool], seconds: float = 120) -> None:
    """Wait for something that SLURM does in its own time."""
    end = time.monotonic() + seconds
    while not seen():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.3)


class Pool:
    """Jobs whose worker waits for a file, and says on which node it is."""

    def __init__(self, folder: Path, *words: str, count: int = 1, noted: bool = True) -> None:
        self.chosen = engine_of(["cluster=slurm", *words])
        self.engine = self.chosen.engine
        assert isinstance(self.engine, SlurmEngine)
        self.plan = folder / "results" / "plans" / "pool"
        self.plan.mkdir(parents=True)
        (self.plan / HEAD).touch()
        script = folder / "worker.py"
        script.write_text(WORKER)
        self.end = folder / "end"
        groups = [WorkerGroup(name="all", count=count, resources=ONE[0].resources)]
        self.engine.check(groups, self.plan)
        note = Note(self.plan, self.chosen, groups)
        command = [sys.executable, str(script), str(self.end)]
        self.ids = self.engine.submit(self.plan, groups, command, note.mark)
        if noted:
            note.add(self.ids)

    def states(self) -> list[str]:
        (note,) = submissions(self.plan)
        return [each.state for each in self.engine.states([jobs_of(note)]).values()]

    def told(self) -> dict[str, object]:
        """Return what `lra watch` has of the jobs."""
        (found,) = JobWatcher(self.plan).look()
        return found.as_json()

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
    assert "requeued" not in pool.words()


def test_what_slurm_says_of_the_jobs_is_counted(slurm: SingleNode, tmp_path: Path) -> None:
    pool = Pool(tmp_path, "cluster.sbatch={begin: now+1hour}", count=2)

    waiting = {"states": {"queued": 2}, "reasons": {"BeginTime": 2}, "early": {}, "mute": []}
    until(lambda: pool.told() == {"cluster": "slurm", "note": "", **waiting})
    pool.engine.stop(pool.ids)
    until(lambda: pool.told()["states"] == {"cancelled": 2})


def test_a_job_whose_time_is_over_saves_and_goes_on_later(
    slurm: SingleNode, tmp_path: Path
) -> None:
    pool = Pool(tmp_path, "cluster.hours=0.034", "cluster.signal_s=60")
    until(lambda: len(pool.nodes()) == 2, 240)
    first, second = pool.words().split("has saved its run and is requeued")
    assert "saved" in first
    pool.end.touch()
    until(lambda: pool.states() == ["ended"])
    assert "completed successfully" in second + pool.words()
    assert "Traceback" not in pool.words()


def test_a_job_that_is_not_queued_again_ends_well_at_its_limit(
    slurm: SingleNode, tmp_path: Path
) -> None:
    given = ("cluster.hours=0.034", "cluster.signal_s=60", "cluster.requeue=false")
    pool = Pool(tmp_path, *given)
    until(lambda: pool.states() == ["ended"], 240)
    assert "has saved its run and ends, because cluster.requeue is false" in pool.words()
    assert "Traceback" not in pool.words()


@pytest.mark.parametrize("number", ["INT", "TERM", "USR1", "HUP"])
def test_a_signal_by_hand_saves_and_ends_well(
    number: str, slurm: SingleNode, tmp_path: Path
) -> None:
    pool = Pool(tmp_path)
    until(lambda: len(pool.nodes()) == 1)
    subprocess.run(["scancel", f"--signal={number}", *pool.ids], check=True)
    until(lambda: pool.states() == ["ended"])
    assert "saved" in pool.words()
    assert "Traceback" not in pool.words()


@pytest.fixture(scope="module")
def far(slurm: SingleNode) -> Iterator[SingleNode]:
    """Another cluster that sees the same folders."""
    other = SingleNode(slurm.folder.with_name("lra-slurm-far"), name="far", port=17817)
    other.start(nodes=2, cpus=8, memory_mb=16_000, arrays=4)
    yield other
    other.stop()


def test_another_cluster_ends_and_counts_no_job_of_the_same_number(
    slurm: SingleNode, far: SingleNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pool(tmp_path)
    (job,) = pool.ids
    until(lambda: len(pool.nodes()) == 1)
    monkeypatch.setenv("SLURM_CONF", str(far.conf))
    ours = ["sbatch", "--parsable", "--wrap=sleep 300", f"--output={tmp_path}/other"]
    for _ in range(int(job)):  # until their number is that of the worker
        number = int(subprocess.run(ours, capture_output=True, text=True, check=True).stdout)
        if number >= int(job):
            break
    assert number == int(job)
    with pytest.raises(ConfigError, match="of the cluster 'lra', and this is 'far'"):
        pool.states()
    assert "this is 'far'" in str(pool.told()["note"])
    call(tmp_path, "submit", "--stop", str(pool.plan), code=2)
    still = ["squeue", "--noheader", "--states=RUNNING,PENDING", f"--job={number}"]
    assert subprocess.run(still, capture_output=True, text=True, check=True).stdout
    monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
    assert pool.states() == ["running"]
    pool.engine.stop(pool.ids)
    until(lambda: pool.states() == ["ended"])


def test_another_user_sees_jobs_and_ends_none(
    slurm: SingleNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pool(tmp_path)
    until(lambda: len(pool.nodes()) == 1)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("squeue", "scancel", "scontrol"):
        words = f"setpriv --reuid=65534 --regid=65534 --clear-groups {shutil.which(name)}"
        (programs / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (programs / name).chmod(0o755)
    with monkeypatch.context() as other:
        other.setenv("PATH", f"{programs}:{os.environ['PATH']}")
        other.setattr(os, "getuid", lambda: 65534)
        assert pool.states() == ["running"]
        assert pool.told()["states"] == {"running": 1}
        with pytest.raises(ConfigError, match="denied; only the owner of the job can end it"):
            pool.engine.stop(pool.ids)
    assert pool.states() == ["running"]
    pool.engine.stop(pool.ids)
    until(lambda: pool.states() == ["ended"])


def test_jobs_without_a_noted_id_are_found_and_stopped(slurm: SingleNode, tmp_path: Path) -> None:
    pool = Pool(tmp_path, "cluster.memory_gb=0.5", count=6, noted=False)
    until(lambda: len(pool.nodes()) == 6)
    assert pool.states() == ["running"] * 6
    call(tmp_path, "submit", "--stop", str(pool.plan))
    until(lambda: set(pool.states()) == {"ended"})


def test_variables_of_a_profile_and_of_a_job_do_not_reach_the_workers(
    slurm: SingleNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = {
        "SBATCH_PARTITION": "short", "SBATCH_TIMELIMIT": "1", "SBATCH_ACCOUNT": "nobodys",
        "SBATCH_NO_REQUEUE": "1", "SBATCH_REQUEUE": "0", "SBATCH_ARRAY_INX": "0-9",
        "SLURM_MEM_PER_CPU": "100", "SLURM_CPUS_PER_TASK": "3", "SQUEUE_PARTITION": "short",
        "SBATCH_EXCLUSIVE": "1", "SBATCH_MEM_PER_CPU": "7", "SBATCH_WAIT": "1",
        "SRUN_CPUS_PER_TASK": "5", "SQUEUE_FORMAT": "%u", "SCANCEL_INTERACTIVE": "1",
    }  # fmt: skip
    for name, value in profile.items():
        monkeypatch.setenv(name, value)
    words = ("cluster.partition=main", "cluster.hours=1", "cluster.account=mine")
    pool = Pool(tmp_path, *words, count=2)
    until(lambda: pool.states() == ["running"] * 2)
    until(lambda: len(pool.nodes()) == 2)
    said = subprocess.run(
        ["scontrol", "show", "job", pool.ids[0]], capture_output=True, text=True, check=True
    ).stdout
    for word in ("Partition=main", "TimeLimit=01:00:00", "Account=mine", "Requeue=1",
                 "OverSubscribe=OK", "MinMemoryNode=2G"):  # fmt: skip
        assert word in said
    pool.engine.stop(pool.ids)
    until(lambda: pool.states() == ["ended"] * 2)


def test_drained_nodes_keep_a_job_in_the_queue(
    slurm: SingleNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = f"nodename={','.join(slurm.nodes())}"
    drain = ["scontrol", "update", nodes, "state=drain", "reason=service"]
    subprocess.run(drain, check=True)
    try:
        pool = Pool(tmp_path)
        assert "nodes of main are drained, down or reserved" in capsys.readouterr().err
        until(lambda: pool.told()["states"] == {"queued": 1})
    finally:
        subprocess.run(["scontrol", "update", nodes, "state=resume"], check=True)
    until(lambda: len(pool.nodes()) == 1)
    pool.engine.stop(pool.ids)
    until(lambda: pool.states() == ["ended"])


def test_a_setup_that_fails_is_told_with_its_last_line(slurm: SingleNode, tmp_path: Path) -> None:
    pool = Pool(tmp_path, "cluster.setup=[nosuchmodule load cuda || exit 3]")
    until(lambda: pool.told()["states"] == {"failed": 1})
    ((said, files),) = pool.told()["early"].items()
    assert said.endswith("nosuchmodule: command not found")
    assert said in Path(files[0]).read_text()


def test_a_job_that_is_suspended_does_not_run(slurm: SingleNode, tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    until(lambda: len(pool.nodes()) == 1)
    subprocess.run(["scontrol", "suspend", *pool.ids], check=True)
    until(lambda: pool.states() == ["suspended"])
    subprocess.run(["scontrol", "resume", *pool.ids], check=True)
    until(lambda: pool.states() == ["running"])

    def stopped() -> bool:  # SLURM takes a while to hold a step, and loses signals meanwhile
        pool.engine.stop(pool.ids)
        return pool.states() == ["ended"]

    until(stopped)


def test_a_folder_with_odd_signs_gets_its_output(slurm: SingleNode, tmp_path: Path) -> None:
    folder = tmp_path / "it's a \"#'$HOME folder"
    folder.mkdir()
    pool = Pool(folder, count=2)
    until(lambda: len(pool.nodes()) == 2)
    pool.end.touch()
    until(lambda: pool.states() == ["ended"] * 2)


def test_a_job_that_is_preempted_saves_and_is_queued_again(
    slurm: SingleNode, tmp_path: Path
) -> None:
    pool = Pool(tmp_path, "cluster.partition=low")
    until(lambda: len(pool.nodes()) == 1)
    (node,) = pool.nodes()
    greedy = ["srun", "--partition=high", f"--nodelist={node}", "--exclusive", "true"]
    with subprocess.Popen(greedy, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as other:
        until(lambda: "is preempted and requeued" in pool.words())
        until(lambda: len(pool.nodes()) == 2)
        assert other.wait(60) == 0
    assert "saved" in pool.words()
    pool.engine.stop(pool.ids)
    until(lambda: pool.states() == ["ended"])


def call(folder: Path, verb: str, *words: str, code: int = 0) -> None:
    """Run `lra VERB`, which ends with a code."""
    done = subprocess.run(
        [sys.executable, "-m", "lra", verb, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(HOME), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr


def jobs(form: str) -> list[str]:
    """Return what SLURM says of the workers that run."""
    words = ["squeue", "--noheader", "--array", "--states=RUNNING", f"--format={form} %j"]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return sorted(line.split()[0] for line in said.splitlines() if "lra-mine" in line)


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
        subprocess.run(["scancel", "--user=root"], check=True)
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
        subprocess.run(["scancel", "--user=root"], check=True)
    assert numbers(busy) == numbers(quiet)
    ends = [log.read_text().rpartition("the worker ends with ")[2][:3] for log in
            busy.glob("plans/mine/logs/*.log")]  # fmt: skip
    assert sorted(ends) == ["0 a", "0 a", "143"]
    assert Store(busy).claims() == {}


def test_a_search_by_jobs_chooses_what_one_command_chooses(
    slurm: SingleNode, tmp_path: Path
) -> None:
    call(tmp_path, "run", "-m", *SEARCH, "results=quiet", "sweep=mine")
    quiet, busy = tmp_path / "quiet", tmp_path / "busy"
    given = ["cluster=slurm", "cluster.memory_gb=3", "cluster.workers=2", "results=busy"]
    try:
        call(tmp_path, "submit", *given, *SEARCH, "sweep=mine")
        until(lambda: {*finished(busy)} == {*finished(quiet)}, 300)
        until(lambda: not jobs("%i"))
    finally:
        subprocess.run(["scancel", "--user=root"], check=True)
    assert numbers(busy) == numbers(quiet)
    assert {row[0] for rows in numbers(quiet).values() for row in rows} >= {"accuracy"}
    assert len(finished(quiet)) > 2 * (3 + 1)


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
