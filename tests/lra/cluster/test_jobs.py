"""`lra watch` tells what SLURM says of the jobs, and all else where there is none."""

import json
import os
import sys
from pathlib import Path

import pytest
from fake_slurm import FakeSlurm, fake_slurm

from lra.cli import main

sys.path.append(str(Path(__file__).parents[1] / "sweep"))
from small_sweeps import TINY

QUEUE = """\
1_0|RUNNING|None
1_1|PENDING|Resources
1_2|PENDING|Resources
2_0|PENDING|QOSMaxJobsPerUserLimit
2_1|NODE_FAIL|NodeDown
99|RUNNING|None
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """A SLURM that took six workers of a sweep and knows of all but the last."""
    monkeypatch.setenv("LRA_DATA", str(tmp_path / "data"))
    fake = fake_slurm(tmp_path / "slurm", monkeypatch)
    words = ["model=linear", "seed=range(0,6)", "sweep=some", f"results={tmp_path}"]
    assert main(["submit", "cluster=slurm", "cluster.workers=6", *TINY, *words]) == 0
    fake.answer("squeue", QUEUE)
    return fake


def test_jobs_are_counted_by_state_and_those_that_wait_by_reason(
    slurm: FakeSlurm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    watch = ["watch", "some", "--results", str(tmp_path)]
    assert main([*watch, "--once"]) == 3
    said = capsys.readouterr().out
    assert (
        "slurm: jobs 1 running, 3 queued (2 Resources: no node is free; "
        "1 QOSMaxJobsPerUserLimit: a limit of the QOS), 1 node fail, 1 over, and forgotten by slurm"
    ) in said
    assert main([*watch, "--json"]) == 3
    (jobs,) = json.loads(capsys.readouterr().out)["jobs"]
    assert jobs == {
        "cluster": "slurm",
        "states": {"running": 1, "queued": 3, "node_fail": 1, "forgotten": 1},
        "reasons": {"Resources": 2, "QOSMaxJobsPerUserLimit": 1},
        "note": "",
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
    assert "0 of 6 cells done" in said
    assert "slurm is not asked: squeue failed: down" in said
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    assert main(watch) == 3
    said = capsys.readouterr().out
    assert "slurm is not asked: no squeue on PATH: this is no machine of a SLURM cluster" in said
    assert "nobody works on it" in said
