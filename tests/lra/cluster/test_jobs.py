"""`lra watch` tells what SLURM says of the jobs, and all else where there is none."""

import json
import os
import sys
from pathlib import Path

import pytest
from fake_slurm import FakeSlurm, fake_slurm

from lra.cli import main
from lra.cluster import submissions as notes
from lra.cluster.engine import JobState, Resources, StartedJobs, WorkerGroup, engine_of
from lra.cluster.submissions import submissions
from tests.lra.sweep.small_sweeps import TINY

GROUPS = [WorkerGroup(name="all", count=1, resources=Resources())]
QUEUE = """\
1_0|RUNNING|None|{name}
1_1|PENDING|Resources|{name}
1_2|PENDING|Resources|{name}
2_0|PENDING|QOSMaxJobsPerUserLimit|{name}
2_1|NODE_FAIL|NodeDown|{name}
2_2|RUNNING|None|lra-some
99|RUNNING|None|other
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """A SLURM that took six workers of a sweep and knows of all but the last."""
    fake = fake_slurm(tmp_path / "slurm", monkeypatch)
    words = ["model=linear", "seed=range(0,6)", "sweep=some", f"results={tmp_path}"]
    assert main(["submit", "cluster=slurm", "cluster.workers=6", *TINY, *words]) == 0
    fake.answer("squeue", QUEUE.format(name=job_name(tmp_path)))
    return fake


def job_name(results: Path) -> str:
    """The name of the jobs of the one submission."""
    (note,) = submissions(results / "plans" / "some")
    return f"lra-{note['mark']}"


def test_jobs_are_counted_by_state_and_those_that_wait_by_reason(
    slurm: FakeSlurm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    watch = ["watch", "some", "--results", str(tmp_path)]
    assert main([*watch, "--once"]) == 3
    said = capsys.readouterr().out
    assert (
        "slurm: jobs 1 running, 3 queued (2 Resources: all nodes are busy; "
        "1 QOSMaxJobsPerUserLimit: your QOS has reached a limit), 1 node fail, 1 ended long ago "
        "(slurm forgot them)"
    ) in said
    assert main([*watch, "--json"]) == 3
    (jobs,) = json.loads(capsys.readouterr().out)["jobs"]
    assert jobs == {
        "cluster": "slurm",
        "states": {"running": 1, "queued": 3, "node_fail": 1, "forgotten": 1},
        "reasons": {"Resources": 2, "QOSMaxJobsPerUserLimit": 1},
        "note": "",
        "early": {},
        "mute": ["2_1"],
    }


def test_where_slurm_is_not_or_gives_no_answer_the_rest_is_told(
    slurm: FakeSlurm,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (slurm.folder / "bin" / "squeue").write_text(
        "#!/bin/sh\necho 'squeue: error: down' >&2; exit 1\n"
    )
    watch = ["watch", "some", "--results", str(tmp_path), "--once"]
    assert main(watch) == 3
    said = capsys.readouterr().out
    assert "0 of 6 runs have ended" in said
    assert "slurm was not asked: squeue failed: down" in said
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    assert main(watch) == 3
    said = capsys.readouterr().out
    assert (
        "slurm was not asked: no scontrol on PATH: this machine does not belong to a SLURM" in said
    )
    assert "no worker is active" in said


def test_a_job_that_ended_before_its_worker_began_says_why(
    slurm: FakeSlurm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = job_name(tmp_path)
    slurm.answer("squeue", "".join(f"1_{n}|FAILED|NonZeroExitCode|{name}\n" for n in range(3))
                 + f"2_0|SUSPENDED|None|{name}\n2_1|CANCELLED|None|{name}\n")  # fmt: skip
    folder = tmp_path / "plans" / "some" / "slurm"
    module = "slurm_script: line 9: module: command not found"
    for number in range(2):
        (folder / f"1_{number}_0_log.out").write_text(
            f"loading\n{module}\nsrun: error: n1: task 0: Exited with exit code 1\n\n"
        )
    (folder / "2_2_0_log.out").write_text("job 2_2 starts python\nfailed\n")
    capsys.readouterr()
    assert main(["watch", "some", "--results", str(tmp_path), "--once"]) == 3
    said = capsys.readouterr().out
    assert "jobs 1 suspended, 1 cancelled, 3 failed, 1 ended long ago (slurm forgot them)" in said
    first = folder / "1_0_0_log.out"
    assert f"ended before the worker began: {module} ({first} and 1 more)\n" in said
    assert "job 1_2 failed without output; perhaps its node cannot read the results" in said
    assert "no worker has started yet" in said


def test_reasons_have_words(
    slurm: FakeSlurm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reasons = {
        "BeginTime": "the job starts within", "Dependency": "the job waits for another job",
        "DependencyNeverSatisfied": "will never start: remove it with scancel",
        "JobHeldUser": "scontrol release",
        "ReqNodeNotAvail, UnavailableNodes:n[1-4]": "the nodes of the job are down",
    }  # fmt: skip
    name = job_name(tmp_path)
    lines = [f"1_{n}|PENDING|{why}|{name}\n" for n, why in enumerate(reasons)]
    slurm.answer("squeue", "".join(lines))
    capsys.readouterr()
    assert main(["watch", "some", "--results", str(tmp_path), "--once"]) == 3
    said = capsys.readouterr().out
    for reason, words in reasons.items():
        assert words in said.partition(f"1 {reason}: ")[2].partition("1 ")[0], reason


def test_what_another_cluster_has_is_neither_ended_nor_counted(
    slurm: FakeSlurm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.answer("scontrol", "ClusterName = far\nPrivateData = none\n")
    capsys.readouterr()
    stop = ["submit", "--stop", "some", "--results", str(tmp_path)]
    assert main(stop) == 2
    said = capsys.readouterr()
    assert "the jobs belong to the cluster 'near', but this is 'far'" in said.err
    assert "no workers" not in said.out
    assert slurm.asked("scancel") == []
    assert main(["watch", "some", "--results", str(tmp_path), "--once"]) == 3
    said = capsys.readouterr()
    assert "slurm was not asked: the jobs belong to the cluster 'near'" in said.out
    assert "running" not in said.out.partition("slurm was not asked")[2]


@pytest.mark.parametrize("fails", ["note", "submission", "signal"])
def test_jobs_that_were_started_are_found_without_their_ids(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = fake_slurm(tmp_path / "slurm", monkeypatch)
    real, seen = notes.write_whole, []

    def write(path: Path, content: bytes) -> None:
        seen.append(path)
        if len(seen) > 1 and fails == "note":
            raise OSError(122, "Disk quota exceeded", str(path))
        if len(seen) > 1 and fails == "signal":
            raise KeyboardInterrupt
        real(path, content)

    monkeypatch.setattr(notes, "write_whole", write)
    if fails == "submission":  # sbatch has done it, and says nothing that anybody understands
        (fake.folder / "bin" / "sbatch").write_text("#!/bin/sh\nexit 0\n")
    words = ["model=linear", "seed=0,1", "sweep=some", f"results={tmp_path}"]
    submit = ["submit", "cluster=slurm", "cluster.workers=2", *TINY, *words]
    code = main(submit)
    assert code == {"note": 0, "submission": 2}.get(fails, code)
    said = capsys.readouterr()
    if fails == "note":
        assert (
            "the workers run, and `lra submit --stop` can end them, but their ids could not be "
            "stored: " in said.err
        )
    else:
        assert code != 0
    monkeypatch.setattr(notes, "write_whole", real)
    name = job_name(tmp_path)
    fake.answer("squeue", f"1_0|RUNNING|None|{name}\n1_1|PENDING|None|{name}\n7|RUNNING|None|x\n")
    assert main(["submit", "--stop", "some", "--results", str(tmp_path)]) == 0
    asked = {word for line in fake.asked("scancel") for word in line.split()[2:]}
    assert asked == {"1_0", "1_1"}
    assert "the workers of sweep some will save their runs and end" in capsys.readouterr().out


def test_a_process_that_was_started_is_found_without_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of([]).engine
    script = tmp_path / "work"
    script.write_text("import sys, time\ntime.sleep(60)\n")
    plan = tmp_path / "plan"
    (job,) = engine.submit(plan, GROUPS, [sys.executable, str(script), "work"], "some-1f")
    try:
        found = engine.states([StartedJobs("some-1f", engine.place(), [])])
        assert found == {job: JobState("running")}
        assert engine.states([StartedJobs("some-2f", engine.place(), [])]) == {}
        elsewhere = {"host": "far", "since": "x"}
        assert engine.states([StartedJobs("some-1f", elsewhere, [])]) == {}
    finally:
        engine.stop([job])
