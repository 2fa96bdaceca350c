"""One worker as a job of SLURM: how it ends, without a SLURM."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lra.cluster import slurm_job
from lra.cluster.slurm_job import WorkerJob
from lra.cluster.visibility import leave_token

WORKER = """
import pathlib, signal, sys, time
def save(*_):
    print("saved", flush=True)
    sys.exit(143)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
    signal.signal(number, save)
pathlib.Path(sys.argv[1]).touch()
time.sleep(60)
"""
JOB = """
import sys
from pathlib import Path
from lra.cluster.slurm_job import WorkerJob
token, script, begun = sys.argv[1:]
print(WorkerJob([sys.executable, script, begun], Path(token), requeue=False, seconds=None)())
"""


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP"])
def test_a_signal_by_hand_has_the_worker_save(number: str, tmp_path: Path) -> None:
    script, begun = tmp_path / "worker.py", tmp_path / "begun"
    script.write_text(WORKER)
    words = [sys.executable, "-c", JOB, leave_token(tmp_path), script, begun]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as job:
        end = time.monotonic() + 60
        while not begun.exists() and job.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        os.killpg(job.pid, getattr(signal, number))  # as SLURM does: all of a step
        said = job.communicate(timeout=60)[0]
    assert job.returncode == 0, said
    assert "saved" in said
    assert said.endswith("143\n")
    assert "Traceback" not in said


def test_a_folder_that_a_node_does_not_see_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = WorkerJob(["true"], tmp_path / "none", requeue=True, seconds=None)
    with pytest.raises(SystemExit, match="2"):
        job()
    said = capsys.readouterr().err
    assert "cannot read" in said
    assert "starts" not in said


def test_a_job_at_its_limit_ends_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    requeued: list[int] = []
    monkeypatch.setattr(slurm_job, "_requeue", lambda: requeued.append(1))
    for requeue in (True, False):
        job = WorkerJob(["true"], tmp_path, requeue=requeue, seconds=None)
        with pytest.raises(SystemExit, match="0"):
            job.checkpoint()
    assert requeued == [1]
    assert "has saved its run and ends, because cluster.requeue is false" in capsys.readouterr().err


def test_a_controller_that_does_not_queue_again_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "scontrol"
    program.write_text("#!/bin/sh\necho Requested operation is presently disabled >&2; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(SystemExit, match="1"):
        WorkerJob(["true"], tmp_path, requeue=True, seconds=None).checkpoint()
    said = capsys.readouterr().err
    assert (
        "SLURM does not requeue this job (Requested operation is presently disabled); rerun" in said
    )
