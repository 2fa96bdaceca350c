"""The SLURM engine against programs that answer as SLURM does; no SLURM is needed."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from fake_slurm import SINFO, FakeSlurm, fake_slurm

from lra.cli import main
from lra.cluster import slurm_site as site, visibility
from lra.cluster.engine import Resources, StartedJobs, WorkerGroup, engine_of
from lra.errors import ConfigError

GIB = 2**30
HERE = Path()
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


def test_an_option_of_another_cluster_is_told() -> None:
    with pytest.raises(ConfigError, match="hours is an option of cluster=slurm: got cluster=local"):
        engine_of(["cluster.hours=2"])


def test_workers_are_arrays_within_the_limit(slurm: FakeSlurm, plan: Path) -> None:
    engine = engine_of(["cluster=slurm", "cluster.signal_s=50"]).engine
    engine.check(TWO, HERE)
    assert slurm.submitted() == []

    ids = engine.submit(plan, TWO, [sys.executable, "-m", "lra", "work", str(plan)], "mine-1f")

    assert slurm.submitted() == ["0-2%3", "0-2%3", "", ""]
    assert ids == ["1_0", "1_1", "1_2", "2_0", "2_1", "2_2", "3", "4"]
    first, *_, last = (slurm.folder / "scripts").read_text().split("#!/bin/bash")[1:]
    assert "--mem=2048M" in first
    assert "--time=60\n" in first
    assert "--mem=25600M" in last, "a quarter more than its largest cell"
    for line in ("--signal=USR2@50", "--job-name=lra-mine-1f", "--requeue", "--partition=main"):
        assert f"#SBATCH {line}\n" in first
    assert "--cpus-per-task=4 " in last.partition("\nsrun ")[2], "srun asks for none by itself"


def test_arrays_that_were_submitted_are_taken_back_when_one_is_refused(
    slurm: FakeSlurm, plan: Path
) -> None:
    (slurm.folder / "full").write_text("3")
    with pytest.raises(ConfigError, match=r"sbatch refused 1 workers .*Job violates a limit"):
        engine_of(["cluster=slurm"]).engine.submit(plan, TWO, [sys.executable], "mine-1f")
    taken_back = slurm.asked("scancel")
    ids = [f"{array}_{element}" for array in (1, 2) for element in range(3)]
    assert [line.split()[2:] for line in taken_back] == [ids, ids]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("cluster.partition=mian", "unknown partition 'mian': did you mean 'main'"),
        ("cluster.partition=empty", "empty has no nodes"),
        ("cluster.gpus=3", "needs 3 GPUs, .* nodes of main have 0 GPUs, 8 cores, .* or 2 GPUs, 32"),
        ("cluster.partition=gpu-long; cluster.gpus=5", "nodes of gpu-long have 4 GPUs, 16 cores,"),
        ("cluster.gpus=5", r"another partition \(none has enough\)"),
        ("cluster.gpus=3", r"choose another partition \(gpu-long\), set hardware.processes"),
        ("cluster.partition=short; cluster.gpus=1", r"needs 1 GPUs, 4 cores .*\(main, gpu-long\)"),
        ("cluster.cpus=33", "0 GPUs, 33 cores and .* nodes of main have "),
        ("cluster.memory_gb=63", "63 GiB at once, but the nodes of main have .* 62 GiB;"),
        (
            "cluster.partition=gpu-long; cluster.hours=49",
            "wanted at most 48, the limit of gpu-long",
        ),
        ("cluster.partition=short", "signal_s: got 120; short allows jobs of 120 s"),
        ("cluster.constraint=refused", "SLURM refuses a worker .*Invalid feature.*=refused"),
        ("cluster.sbatch={mem:5G}", "sbatch: got mem:5G: None; wanted long options"),
        (
            "cluster.sbatch={mem: 5G}",
            "sbatch: got mem; wanted options that lra does not set itself",
        ),
        ("cluster.sbatch={licenses: forbidden}", "SLURM refuses a worker"),
        ("cluster.hours=0.03", "a worker needs the last 120 s"),
        ("cluster.hours=0", "hours: got 0"),
        ("cluster.memory_gb=0", "memory_gb: got 0"),
        ("cluster.partion=main", "partion"),
        ("cluster.workers=0", "workers: got 0"),
        (
            "cluster.account=phisics",
            "account: 'phisics' is not available to you: did you mean 'physics'",
        ),
        ("cluster.qos=lang", "qos: 'lang' is not available to you: did you mean 'long'"),
    ],
)
def test_bad_input_is_refused_before_anything_is_submitted(
    slurm: FakeSlurm, words: str, message: str
) -> None:
    slurm.answer("sacctmgr", "physics|normal,long\nmaths|normal\n")
    with pytest.raises(ConfigError, match=message):
        engine_of(["cluster=slurm", *words.split("; ")]).engine.check(TWO, HERE)
    assert slurm.submitted() == []


def test_all_obstacles_are_told_at_once(slurm: FakeSlurm) -> None:
    slurm.answer("sacctmgr", "physics|normal,long\n")
    words = ["cluster.partition=short", "cluster.gpus=1", "cluster.account=other"]
    with pytest.raises(ConfigError) as caught:
        engine_of(["cluster=slurm", *words, "cluster.hours=1"]).engine.check(TWO, Path("50%"))
    said = str(caught.value)
    for part in (
        "'other' is not available to you",
        "holds %",
        "needs 1 GPUs",
        "at most 0.0333, the limit of short",
    ):
        assert said.count(part) == (2 if "GPUs" in part else 1), said
    with pytest.raises(ConfigError) as caught:
        engine_of(["cluster=slurm", "cluster.partition=mian", *words[2:]]).engine.check(TWO, HERE)
    assert "unknown partition 'mian'" in str(caught.value)
    assert "'other' is not available to you" in str(caught.value)


def test_without_slurm_or_submitit_the_way_out_is_said(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(["cluster=slurm"]).engine
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ConfigError, match=r"pip install 'lra\[slurm\]'.*cluster=local"):
        engine.check(TWO, HERE)
    found = {name: shutil.which(name) for name in ("sinfo", "sbatch")}
    monkeypatch.setenv("PATH", str(slurm.folder))
    assert all(found.values())
    with pytest.raises(ConfigError, match=r"no sbatch, srun.*login node, or choose cluster=local"):
        engine.check(TWO, HERE)


def test_a_controller_that_is_down_is_one_sentence(slurm: FakeSlurm) -> None:
    down = "#!/bin/sh\necho 'sinfo: error: Unable to contact slurm controller' >&2; exit 1\n"
    (slurm.folder / "bin" / "sinfo").write_text(down)
    with pytest.raises(ConfigError, match=r"sinfo failed: Unable to contact slurm controller$"):
        engine_of(["cluster=slurm"]).engine.check(TWO, HERE)


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
        engine_of(["cluster=slurm"]).engine.check(TWO, HERE)
    engine = engine_of(["cluster=slurm", "cluster.python=/shared/bin/python"]).engine
    with pytest.raises(ConfigError, match=r"the results folder .*ext4, mounted at /:.*results=DIR"):
        engine.check(TWO, plan)
    assert slurm.submitted() == []

    table.write_text(disk + line.format(21, tmp_path / "results", "nfs4"))
    engine.check(TWO, plan)
    table.write_text(disk)
    python = "cluster.python=/shared/bin/python"
    engine_of(["cluster=slurm", python, "cluster.results_shared=true"]).engine.check(TWO, plan)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("#!/bin/sh\nexit 3", "is not a Python with lra and submitit .*exit status 3"),
        ("no program", "is not a Python with lra and submitit .*Exec format error"),
        (
            None,
            "is not a Python with lra and submitit .*Permission denied.*; wanted a Python that "
            "has lra",
        ),
    ],
)
def test_a_python_that_starts_no_worker_is_refused(
    slurm: FakeSlurm, tmp_path: Path, program: str | None, said: str
) -> None:
    python = tmp_path / "python"
    python.write_text(program or "#!/bin/sh")
    python.chmod(0o644 if program is None else 0o755)
    with pytest.raises(ConfigError, match=f"cluster.python: {python} {said}"):
        engine_of(["cluster=slurm", f"cluster.python={python}"]).engine.check(TWO, HERE)
    prepared = ["cluster=slurm", f"cluster.python={python}", "cluster.setup=[module]"]
    engine_of(prepared).engine.check(TWO, HERE)
    assert slurm.submitted() == []


def test_a_python_of_the_nodes_alone_is_believed(
    slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    engine_of(["cluster=slurm", f"cluster.python={sys.executable}"]).engine.check(TWO, HERE)
    assert capsys.readouterr().err == ""
    engine_of(["cluster=slurm", "cluster.python=/nodes/bin/python"]).engine.check(TWO, HERE)
    said = "cluster.python: /nodes/bin/python is not on this machine; nodes must have it\n"
    assert capsys.readouterr().err == said
    assert slurm.submitted() == []


def test_a_host_that_sees_another_folder_says_so(tmp_path: Path) -> None:
    token = visibility.leave_token(tmp_path)
    assert str(tmp_path) in visibility.check_token(token)
    token.write_text("another")
    with pytest.raises(visibility.TokenFault, match="this host has another folder"):
        visibility.check_token(token)
    token.unlink()
    with pytest.raises(visibility.TokenFault, match=r"cannot read .* under the same path"):
        visibility.check_token(token)


def test_states_and_stops_are_of_the_jobs_that_are_asked_for(slurm: FakeSlurm) -> None:
    engine = engine_of(["cluster=slurm"]).engine
    name = "lra-mine-1f"
    slurm.answer(
        "squeue",
        f"5_0|RUNNING|None|{name}\n5_1|PENDING|Resources|{name}\n5_2|NODE_FAIL|NodeDown|{name}\n"
        f"5_3|COMPLETED|None|{name}\n6|RUNNING|None|{name}\n7|CANCELLED|BeginTime|{name}\n"
        f"8|SUSPENDED|None|{name}\n9|RUNNING|None|a|b\n10|RUNNING|None|lra-mine-2f\n",
    )
    ids = ["5_0", "5_1", "5_2", "5_3", "5_9", "7_0", "8", "9"]
    known = {
        "5_0": ("running", ""), "5_1": ("queued", "Resources"), "5_2": ("node_fail", ""),
        "5_3": ("ended", ""), "5_9": ("forgotten", ""), "7_0": ("cancelled", ""),
        "8": ("suspended", ""), "9": ("forgotten", ""),
    }  # fmt: skip
    unnoted = {"6": ("running", "")}
    assert engine.states([StartedJobs("mine-1f", engine.place(), ids)]) == known | unnoted
    assert f"--user={os.getuid()}" in slurm.asked("squeue")[0]
    engine.stop(["5_0", "5_1", "5_2", "5_9", "8"])
    asked = ["5_0", "5_1", "5_2", "5_9", "8"]
    assert [line.split()[1:] for line in slurm.asked("scancel")] == [
        ["--state=PENDING", *asked], ["--signal=TERM", *asked]
    ]  # fmt: skip


def test_jobs_of_another_cluster_are_not_known_by_their_numbers(slurm: FakeSlurm) -> None:
    engine = engine_of(["cluster=slurm"]).engine
    started = StartedJobs("mine-1f", {"cluster": "far", "user": str(os.getuid())}, ["5"])
    slurm.answer("squeue", "5|RUNNING|None|lra-mine-1f\n")
    with pytest.raises(ConfigError, match=r"to the cluster 'far', but this is 'near': run the"):
        engine.states([started])


def test_jobs_of_another_user_are_asked_for_by_that_user(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(["cluster=slurm"]).engine
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    started = StartedJobs("mine-1f", {"cluster": "near", "user": "1234", "named": "ann"}, ["5"])
    assert engine.states([started]) == {"5": ("forgotten", "")}
    assert "--user=1234 " in slurm.asked("squeue")[0]
    slurm.answer("scontrol", "ClusterName = near\nPrivateData             = jobs,usage\n")
    with pytest.raises(ConfigError, match=r"to ann, and .* other users .*PrivateData.*as ann"):
        engine.states([started])
    slurm.answer("squeue", "5|RUNNING|None|lra-mine-1f\n")
    assert engine.states([started]) == {"5": ("running", "")}, "operators see them"
    denied = "scancel: error: Kill job error on job id 5: Access/permission denied"
    (slurm.folder / "bin" / "scancel").write_text(f"#!/bin/sh\necho '{denied}' >&2; exit 210\n")
    with pytest.raises(ConfigError, match="denied; only the owner of the job can end it"):
        engine.stop(["5"])
    over = "scancel: error: Kill job error on job id 5: Invalid job id specified"
    (slurm.folder / "bin" / "scancel").write_text(f"#!/bin/sh\necho '{over}' >&2; exit 1\n")
    engine.stop(["5"])


PROFILE = {
    "SBATCH_PARTITION": "gpu-long", "SBATCH_TIMELIMIT": "1", "SBATCH_ACCOUNT": "maths",
    "SBATCH_NO_REQUEUE": "1", "SBATCH_REQUEUE": "1", "SBATCH_ARRAY_INX": "0-9", "SBATCH_WAIT": "1",
    "SLURM_MEM_PER_CPU": "100", "SRUN_OUTPUT": "x", "SQUEUE_PARTITION": "gpu-long",
    "SCANCEL_INTERACTIVE": "1", "SINFO_PARTITION": "short", "SLURM_CLUSTERS": "far",
}  # fmt: skip
"""A profile, and what an interactive job has left."""


def test_the_command_line_counts_more_than_variables_of_the_shell(
    slurm: FakeSlurm, plan: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for name in ("sbatch", "squeue", "sinfo", "scancel"):
        program = slurm.folder / "bin" / name
        program.write_text(f"#!/bin/sh\nenv > {slurm.folder}/{name}.env\n"
                           + program.read_text().partition("\n")[2])  # fmt: skip
    for name, value in (PROFILE | {"SLURM_CONF": "/c", "SBATCH_QOS": "long"}).items():
        monkeypatch.setenv(name, value)

    def reaches(program: str) -> set[str]:
        lines = (slurm.folder / f"{program}.env").read_text().splitlines()
        return {line.partition("=")[0] for line in lines} & {*PROFILE, "SLURM_CONF", "SBATCH_QOS"}

    engine = engine_of(["cluster=slurm", "cluster.partition=main", "cluster.account=own"]).engine
    engine.check(TWO, HERE)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert (
        "these variables have no effect on workers: SBATCH_ACCOUNT=maths, SBATCH_ARRAY_INX=0-9, "
        in said
    )
    assert "SLURM_MEM_PER_CPU=100. Use cluster.hours" in said
    assert "QOS" not in said
    assert reaches("sbatch") == {"SLURM_CONF", "SBATCH_QOS"}
    engine.submit(plan, TWO, [sys.executable], "mine-1f")
    engine.stop([*engine.states([StartedJobs("mine-1f", engine.place(), ["1"])])])
    assert reaches("sbatch") == {"SLURM_CONF", "SBATCH_QOS"}
    for program in ("sinfo", "squeue", "scancel"):
        assert {name for name in reaches(program) if name[:6] != "SBATCH"} == {"SLURM_CONF"}
    assert {*PROFILE} <= os.environ.keys(), "of lra itself they stay"

    words = ["cluster=slurm", "cluster.qos=high", "cluster.sbatch={reservation: r}"]
    mine = engine_of(words).engine
    monkeypatch.setenv("SBATCH_RESERVATION", "other")
    mine.check(TWO, HERE)
    said = capsys.readouterr().err
    assert "SBATCH_QOS=long, SBATCH_REQUEUE=1, SBATCH_RESERVATION=other" in said
    assert "SBATCH_PARTITION" not in said, "it stands for what the command line leaves open"
    assert "SBATCH_ACCOUNT" not in said
    assert reaches("sbatch") == {"SLURM_CONF", "SBATCH_ACCOUNT"}
    mine.submit(plan, TWO[:1], [sys.executable], "mine-1f")
    assert "--partition=gpu-long" in (slurm.folder / "scripts").read_text()

    monkeypatch.setenv("SLURM_JOB_ID", "77")
    mine.check(TWO, HERE)
    said = capsys.readouterr().err
    assert "and SLURM_* of job 77, in which this shell runs. Use" in said
    assert "MEM_PER_CPU" not in said


def test_nodes_that_are_drained_refuse_no_worker(
    slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "allocation failure: Requested node configuration is not available"
    (slurm.folder / "bin" / "sbatch").write_text(f"#!/bin/sh\necho '{words}' >&2; exit 1\n")
    engine = engine_of(["cluster=slurm"]).engine
    sinfo = slurm.folder / "bin" / "sinfo"
    sinfo.write_text(sinfo.read_text().replace(
        "cat /", f'case "$*" in *%T*) cat {slurm.folder}/nodes; exit;; esac; cat /'))  # fmt: skip
    (slurm.folder / "nodes").write_text("up|idle\nup|drained\n")
    engine.check(TWO, HERE)
    assert "nodes of main are drained, down or reserved: workers (small)" in capsys.readouterr().err
    (slurm.folder / "nodes").write_text("up|idle\nup|mixed\n")
    with pytest.raises(ConfigError, match=r"SLURM refuses a worker .*configuration is not"):
        engine.check(TWO, HERE)


def test_whole_minutes_leave_time_for_work(slurm: FakeSlurm) -> None:
    """SLURM would send its signal at once, and nobody would queue the job again."""
    for words in (["cluster.hours=0.0333", "cluster.signal_s=119"], ["cluster.hours=0.0333"]):
        with pytest.raises(
            ConfigError, match=r"hours: got 0.0333, which are 60 s in whole minutes"
        ):
            engine_of(["cluster=slurm", *words])
    short = ["cluster=slurm", "cluster.partition=short"]
    with pytest.raises(ConfigError, match=r"signal_s: got 61; short allows jobs of 120 s.*60 or"):
        engine_of([*short, "cluster.signal_s=61"]).engine.check(TWO[:1], HERE)
    engine_of([*short, "cluster.signal_s=60"]).engine.check(TWO[:1], HERE)
    engine_of(["cluster=slurm", "cluster.hours=0.034", "cluster.signal_s=60"]).engine.check(
        TWO[:1], HERE
    )


@pytest.mark.parametrize("word", ["%j", "a\\b", "100%"])
def test_a_folder_that_slurm_reads_as_a_pattern_is_refused(
    slurm: FakeSlurm, tmp_path: Path, word: str
) -> None:
    plan = tmp_path / word / "plans" / "mine"
    plan.mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"holds %, a backslash .* give results=DIR without them"):
        engine_of(["cluster=slurm"]).engine.check(TWO, plan)
    assert slurm.submitted() == []


def test_what_slurm_prints_is_read() -> None:
    times = {"infinite": None, "2:00": 120, "1:00:00": 3600, "2-00:00:00": 172_800, "1-12": 129_600}
    assert {text: site.seconds_of(text) for text in times} == times
    gres = {"(null)": 0, "gpu:2": 2, "gpu:a100:4(S:0-1),nvme:1": 4, "gpu:a:4,gpu:b:2": 6, "gpu": 1}
    assert {text: site.gpus_of(text) for text in gres} == gres


def test_a_dry_run_shows_the_script_and_submits_nothing(
    slurm: FakeSlurm,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = [
        "cluster=slurm", "cluster.hours=3", "cluster.signal_s=50", "model=linear,identity",
        "task=mqar", "sweep=mine", f"results={tmp_path / 'results'}", "runner.dry_run=true",
    ]  # fmt: skip
    assert main(["submit", *words]) == 0
    text = capsys.readouterr().out
    assert "3 runs to do" in text  # with the baselines
    assert "3 workers (" in text
    plan = tmp_path / "results" / "plans" / "mine"
    for line in ("--partition=main", "--time=180", "--signal=USR2@50", "--cpus-per-task=",
                 "--array=0-2%3", "--job-name=lra-mine-WORD",
                 f"--output={plan / 'slurm' / '%A_%a_0_log.out'}"):  # fmt: skip
        assert f"#SBATCH {line}" in text
    assert f"{sys.executable} -u -m submitit.core._submit {plan / 'slurm'}" in text
    assert f"Each job starts {sys.executable} -m lra work {plan} --group " in text
    assert slurm.submitted() == []
    assert not (tmp_path / "results" / "plans").exists()
    assert main(["submit", *words, "cluster.partition=mian"]) == 2
    assert "did you mean 'main'" in capsys.readouterr().err
    assert main(["submit", *words, "cluster.partition=short"]) == 2
    assert "at most 0.0333, the limit of short" in capsys.readouterr().err
    monkeypatch.setenv("PATH", "")
    assert main(["submit", *words, "cluster.partition=other"]) == 2
    said = capsys.readouterr()
    assert "#SBATCH --partition=other\n" in said.out
    assert "no sbatch, srun," in said.err
