"""The SLURM engine against programs that answer as SLURM does; no SLURM is needed."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from fake_slurm import SINFO, FakeSlurm, fake_slurm

from lra.cluster import slurm_site as site, visibility
from lra.cluster.engine import Resources, WorkerGroup, chosen
from lra.errors import ConfigError

GIB = 2**30
TWO = [
    WorkerGroup(name="small", count=7, resources=Resources(cpus=1, memory_bytes=GIB, seconds=60)),
    WorkerGroup(name="large", count=1, resources=Resources(cpus=4, memory_bytes=20 * GIB)),
]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    return fake_slurm(tmp_path / "slurm", monkeypatch)


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    folder = tmp_path / "results" / "plans" / "mine"
    folder.mkdir(parents=True)
    return folder


def test_workers_are_arrays_within_the_limit(slurm: FakeSlurm, plan: Path) -> None:
    engine = chosen(["cluster=slurm", "cluster.signal_s=50"]).engine
    engine.check(TWO)
    assert slurm.submitted() == []

    ids = engine.submit(plan, TWO, [sys.executable, "-m", "lra", "work", str(plan)])

    assert slurm.submitted() == ["0-2%3", "0-2%3", "", ""]
    assert ids == ["1_0", "1_1", "1_2", "2_0", "2_1", "2_2", "3", "4"]
    first, *_, last = (slurm.folder / "scripts").read_text().split("#!/bin/bash")[1:]
    assert "--mem=2048M" in first
    assert "--time=60\n" in first
    assert "--mem=25600M" in last, "a quarter more than its largest cell"
    for line in ("--signal=USR2@50", "--job-name=lra-mine", "--requeue", "--partition=main"):
        assert f"#SBATCH {line}\n" in first
    assert "--cpus-per-task=4 " in last.partition("\nsrun ")[2], "srun asks for none by itself"


def test_arrays_that_were_submitted_are_taken_back_when_one_is_refused(
    slurm: FakeSlurm, plan: Path
) -> None:
    (slurm.folder / "full").write_text("3")
    with pytest.raises(ConfigError, match=r"sbatch refused 1 workers .*Job violates a limit"):
        chosen(["cluster=slurm"]).engine.submit(plan, TWO, [sys.executable])
    taken_back = slurm.asked("scancel")
    assert [line.split()[-1] for line in taken_back if "PENDING" in line] == ["1_[0-2]", "2_[0-2]"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("cluster.partition=mian", "unknown partition 'mian': did you mean 'main'"),
        ("cluster.partition=empty", "empty has no nodes"),
        ("cluster.gpus=3", "needs 3 GPUs, and no node of main has more than 2"),
        ("cluster.partition=gpu-long; cluster.gpus=5", "no node of gpu-long has more than 4"),
        ("cluster.cpus=33", "needs 33 cores, and no node of main has more than 32"),
        ("cluster.memory_gb=63", "63 GiB at once, and no node of main has them"),
        ("cluster.gpus=1; cluster.cpus=33", "no node"),
        ("cluster.partition=gpu-long; cluster.hours=49", "gpu-long allows 48 at most"),
        ("cluster.partition=short", "signal_s: got 120; short allows jobs of 120 s"),
        ("cluster.constraint=refused", "SLURM refuses a worker .*Invalid feature.*=refused"),
        ("cluster.sbatch={mem:5G}", "sbatch: got mem:5G: None; wanted long options with values"),
        ("cluster.sbatch={mem: 5G}", "sbatch: got mem; wanted other options"),
        ("cluster.sbatch={licenses: forbidden}", "SLURM refuses a worker"),
        ("cluster.hours=0.03", "of which the last 120 s are for saving"),
        ("cluster.hours=0", "hours: got 0"),
        ("cluster.memory_gb=0", "memory_gb: got 0"),
        ("cluster.partion=main", "partion"),
        ("cluster.workers=0", "workers: got 0"),
        ("cluster.account=phisics", "account: 'phisics' is none of yours: did you mean 'physics'"),
        ("cluster.qos=lang", "qos: 'lang' is none of yours: did you mean 'long'"),
        ("cluster.account=maths", "account maths .MaxSubmitJobs. allows 5 jobs at once"),
    ],
)
def test_bad_input_is_refused_before_anything_is_submitted(
    slurm: FakeSlurm, words: str, message: str
) -> None:
    slurm.answer("sacctmgr", "physics|normal,long|\nmaths|normal|5\n")
    with pytest.raises(ConfigError, match=message):
        chosen(["cluster=slurm", *words.split("; ")]).engine.check(TWO)
    assert slurm.submitted() == []


def test_without_slurm_or_submitit_the_way_out_is_said(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = chosen(["cluster=slurm"]).engine
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ConfigError, match=r"pip install 'lra\[slurm\]'.*cluster=local"):
        engine.check(TWO)
    found = {name: shutil.which(name) for name in ("sinfo", "sbatch")}
    monkeypatch.setenv("PATH", str(slurm.folder))
    assert all(found.values())
    with pytest.raises(ConfigError, match=r"no sbatch, srun.*login node, or choose cluster=local"):
        engine.check(TWO)


def test_a_controller_that_is_down_is_one_sentence(slurm: FakeSlurm) -> None:
    down = "#!/bin/sh\necho 'sinfo: error: Unable to contact slurm controller' >&2; exit 1\n"
    (slurm.folder / "bin" / "sinfo").write_text(down)
    with pytest.raises(ConfigError, match=r"sinfo failed: Unable to contact slurm controller$"):
        chosen(["cluster=slurm"]).engine.check(TWO)


def test_a_disk_of_this_machine_is_refused_where_workers_run_elsewhere(
    slurm: FakeSlurm, plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.answer("sinfo", SINFO.format(hosts="node[01-40]"))
    table = tmp_path / "mounts"
    line = "{} 1 8:1 / {} rw - {} /dev/x rw\n"
    disk = line.format(20, "/", "ext4")
    table.write_text(disk)
    monkeypatch.setattr(visibility, "MOUNTS", table)
    with pytest.raises(
        ConfigError, match=r"Python's environment .*ext4.*node.*cluster.python=PATH"
    ):
        chosen(["cluster=slurm"]).engine.check(TWO)
    engine = chosen(["cluster=slurm", "cluster.python=/shared/bin/python"]).engine
    engine.check(TWO)
    with pytest.raises(ConfigError, match=r"the results folder .*ext4, mounted at /:.*results=DIR"):
        engine.submit(plan, TWO, [sys.executable])
    assert slurm.submitted() == []

    table.write_text(disk + line.format(21, tmp_path / "results", "nfs4"))
    assert engine.submit(plan, TWO, [sys.executable])
    table.write_text(disk)
    overruled = chosen(["cluster=slurm", "cluster.results_shared=true"]).engine
    assert overruled.submit(plan, TWO, [sys.executable])


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("#!/bin/sh\necho lra\necho 3.12", "is Python 3.12 without lra; wanted one with lra"),
        ("#!/bin/sh\nexit 3", "does not answer as a Python does .*exit status 3"),
        ("#!/bin/sh\necho usage: me", "does not answer as a Python does"),
        ("no program", "does not answer as a Python does .*Exec format error"),
        (None, "is no program; wanted one with lra"),
    ],
)
def test_a_python_that_starts_no_worker_is_refused(
    slurm: FakeSlurm, tmp_path: Path, program: str | None, said: str
) -> None:
    python = tmp_path / "python"
    python.write_text(program or "#!/bin/sh")
    python.chmod(0o644 if program is None else 0o755)
    with pytest.raises(ConfigError, match=f"cluster.python: {python} {said}"):
        chosen(["cluster=slurm", f"cluster.python={python}"]).engine.check(TWO)
    prepared = ["cluster=slurm", f"cluster.python={python}", "cluster.setup=[module]"]
    chosen(prepared).engine.check(TWO)
    assert slurm.submitted() == []


def test_a_python_of_the_nodes_alone_is_believed(
    slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen(["cluster=slurm", f"cluster.python={sys.executable}"]).engine.check(TWO)
    assert capsys.readouterr().err == ""
    chosen(["cluster=slurm", "cluster.python=/nodes/bin/python"]).engine.check(TWO)
    said = "cluster.python: /nodes/bin/python is not on this machine; nodes must have it\n"
    assert capsys.readouterr().err == said
    assert slurm.submitted() == []


def test_a_host_that_sees_another_folder_says_so(tmp_path: Path) -> None:
    token = visibility.leave_token(tmp_path)
    assert str(tmp_path) in visibility.check_token(token)
    token.write_text("another")
    with pytest.raises(visibility.TokenFault, match="not the same folder"):
        visibility.check_token(token)
    token.unlink()
    with pytest.raises(visibility.TokenFault, match=r"does not see .* under the same path"):
        visibility.check_token(token)


def test_states_and_stops_are_of_the_jobs_that_are_asked_for(slurm: FakeSlurm) -> None:
    engine = chosen(["cluster=slurm"]).engine
    slurm.answer(
        "squeue",
        "5_0|RUNNING|None\n5_1|PENDING|Resources\n5_2|NODE_FAIL|NodeDown\n5_3|COMPLETED|None\n"
        "6|RUNNING|None\n7|CANCELLED|BeginTime\n",
    )
    ids = ["5_0", "5_1", "5_2", "5_3", "5_9", "7_0"]
    assert engine.states(ids) == {
        "5_0": ("running", ""), "5_1": ("queued", "Resources"), "5_2": ("node_fail", ""),
        "5_3": ("ended", ""), "5_9": ("forgotten", ""),
        "7_0": ("cancelled", ""),
    }  # fmt: skip
    engine.stop(["5_0", "5_1", "5_2", "5_9", "8"])
    assert [line.split()[1:] for line in slurm.asked("scancel")] == [
        ["--state=PENDING", "5_[0-2,9]"], ["--signal=TERM", "5_[0-2,9]"],
        ["--state=PENDING", "8"], ["--signal=TERM", "8"],
    ]  # fmt: skip
    assert f"--user={os.getuid()}" in slurm.asked("squeue")[0]


def test_what_slurm_prints_is_read() -> None:
    times = {"infinite": None, "2:00": 120, "1:00:00": 3600, "2-00:00:00": 172_800, "1-12": 129_600}
    assert {text: site.seconds_of(text) for text in times} == times
    gres = {"(null)": 0, "gpu:2": 2, "gpu:a100:4(S:0-1),nvme:1": 4, "gpu:a:4,gpu:b:2": 6, "gpu": 1}
    assert {text: site.gpus_of(text) for text in gres} == gres
