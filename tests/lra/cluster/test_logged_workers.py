"""Runs of cells that workers share: trainings write theirs, the last worker those of rows."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lra.cli import main
from lra.cluster.local import LocalEngine
from lra.reports.dashboard.keys import TRAINING
from tests.lra.cluster.shared_sweeps import ended, work
from tests.lra.sweep.small_sweeps import BRIEF, TINY
from tests.reports.dashboard.wandb_server import synced

SMALL = ("model=linear", "model.backbone.depth=1", "model.backbone.width=16")


@pytest.fixture
def submit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_account: None
) -> Callable[..., None]:
    """Store the plan of the sweep `some`; nothing is started."""
    monkeypatch.setattr(LocalEngine, "submit", lambda *_: [])

    def submitted(*words: str) -> None:
        assert main(["submit", *TINY, *SMALL, f"results={tmp_path}", "sweep=some", *words]) == 0

    return submitted


def log(results: Path) -> str:
    return "".join(path.read_text() for path in sorted(results.glob("plans/some/logs/*.log")))


def test_trainings_write_their_runs(submit: Callable[..., None], tmp_path: Path) -> None:
    submit("seed=0,1", "optim.steps=60", "runner.log_every_steps=5", "logger=wandb_offline")
    assert ended(work(tmp_path, "--workers", "2"))[0] == 0
    runs = synced(tmp_path)
    assert {run.name for run in runs} == {"linear/listops/s0", "linear/listops/s1"}
    assert [run.group for run in runs] == ["some", "some"]
    for run in runs:
        assert run.values(TRAINING["loss"]), "known only while it runs"
        assert run.summary["quality/test_accuracy"] >= 0
        assert (run.summary["status"], run.exit_code) == ("complete", 0)
    assert "the runs for W&B" in log(tmp_path)
    assert log(tmp_path).count(f"{tmp_path / 'wandb'} has the runs of this sweep") == 1


def test_the_last_one_writes_curves(submit: Callable[..., None], tmp_path: Path) -> None:
    submit("runner=scaling", "runner.lengths=[32,64]", "runner.modes=[forward]", *BRIEF,
           "logger=tensorboard")  # fmt: skip
    assert ended(work(tmp_path, "--workers", "2"))[0] == 0
    (folder,) = {file.parent for file in (tmp_path / "tensorboard").rglob("events.*")}
    assert str(folder).startswith(f"{tmp_path}/tensorboard/some/linear/listops/s0/32-64 ")
    assert f"tensorboard --logdir {tmp_path / 'tensorboard'}" in log(tmp_path)
