"""What a dashboard gets of cells that many workers share, while they run and afterwards."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from lra.cli import main
from lra.cluster import reporting
from lra.cluster.local import LocalEngine
from lra.cluster.plan import StoredPlan, plan_folder
from lra.reports.dashboard.keys import STEP_LOSS
from lra.reports.dashboard.state import read_state, taken
from lra.runners.store import Store
from tests.lra.cluster.shared_sweeps import ended, until, work
from tests.lra.sweep.small_sweeps import TINY
from tests.reports.dashboard.offline_runs import Run
from tests.reports.dashboard.wandb_server import KEY, wandb_server

TRAININGS = ("model=linear", "model.backbone.depth=1", "model.backbone.width=16", "seed=0,1",
             "optim.steps=60", "runner.log_every_steps=5")  # fmt: skip
ONE = ("model=linear", "optim.steps=300", "runner.checkpoint_every_s=0.05")


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Store the plan of the sweep `some`; nothing is started."""
    monkeypatch.setattr(LocalEngine, "submit", lambda *_: [])

    def submitted(*words: str) -> None:
        assert main(["submit", *TINY, f"results={tmp_path}", "sweep=some", *words]) == 0

    return submitted


def runs(results: Path) -> dict[str, Run]:
    """Return the runs of W&B by their names; none is there twice."""
    found = [Run(path) for path in sorted((results / "wandb").glob("*run-*"))]
    names = [run.run.display_name for run in found]
    assert len({*names}) == len(names)
    return dict(zip(names, found, strict=True))


def log(results: Path) -> str:
    return "".join(path.read_text() for path in sorted(results.glob("plans/some/logs/*.log")))


def test_trainings_are_written_by_their_workers_and_the_report_by_the_last(
    submit: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another worker still writes is waited for, and left to it."""
    submit(*TRAININGS, "logger=wandb_offline")
    assert ended(work(tmp_path, "--workers", "2"))[0] == 0
    state = read_state(tmp_path / "wandb")
    live = [was for was in state.values() if was.live]
    assert len(live) == 2, log(tmp_path)
    assert all(content for was in live for content in was.cells.values())
    found = runs(tmp_path)
    assert {run.run.job_type for run in found.values()} == {"train", "report"}
    trained = [run for run in found.values() if run.run.job_type == "train"]
    assert [run.config["sweep"] for run in trained] == ["some", "some"]
    for run in trained:
        assert any(STEP_LOSS in line for line in run.history), "known only while it runs"
        assert run.summary["quality/test_accuracy"] >= 0
        assert run.summary["status"] == "complete"
    assert "its runs for W&B" in log(tmp_path)
    assert not [*(tmp_path / "wandb/data").glob(".live*")]
    leave_to_another_worker(tmp_path, monkeypatch)


def leave_to_another_worker(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Report anew, while the run of one cell is not whole and somebody holds it."""
    folder = results / "wandb"
    name, was = next((run, was) for run, was in read_state(folder).items() if was.live)
    (file,) = folder.glob(f"mirrored/{name}.json")
    whole = file.read_text()
    (key,) = was.cells
    file.write_text(whole.replace(was.cells[key], ""))
    (results / "plans/some" / reporting.DONE).unlink()
    monkeypatch.setattr(reporting, "OTHERS_S", 1.0)
    plan = StoredPlan(plan_folder(results, "some"))
    said: list[str] = []
    lock = taken(folder, name)
    assert lock is not None
    before = Path(was.path).stat().st_mtime_ns
    with (results / "out").open("w") as out:
        reporting.report_once(plan, said.append, out)
        assert any("waiting for the runs of 1 cells" in line for line in said)
        assert any("left to the workers that write them" in line for line in said)
        out.flush()
        assert "could not be written" not in (results / "out").read_text(), "nobody tried to copy"
        assert Path(was.path).stat().st_mtime_ns == before
        assert read_state(folder)[name].cells == {key: ""}
        lock.release()
        (results / "plans/some" / reporting.DONE).unlink()
        reporting.report_once(plan, said.append, out)
    assert read_state(folder)[name].cells == was.cells, "copied from the rows"
    assert Store(results).claims() == {}
    plan.close()


def test_a_server_gets_trainings_of_two_workers_as_they_run(
    submit: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with wandb_server() as server:
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        submit(*TRAININGS, "logger=wandb_online")
        assert ended(work(tmp_path, "--workers", "2"))[0] == 0
        live = {run for run, was in read_state(tmp_path / "wandb").items() if was.live}
        assert len(live) == 2, log(tmp_path)
        for run in live:
            assert any(STEP_LOSS in line for line in server.history[run].values())
    assert "runs are on the server" in log(tmp_path)
    assert "lacks" not in log(tmp_path)


def test_the_run_of_a_worker_that_is_killed_goes_on_with_the_next(
    submit: Callable[..., None], tmp_path: Path
) -> None:
    submit(*ONE, "logger=wandb_offline")
    first = work(tmp_path, "--name", "victim")
    until(lambda: [*tmp_path.glob("cells/*/*/checkpoint-*/*")])
    until(lambda: read_state(tmp_path / "wandb"))
    first.send_signal(signal.SIGKILL)
    assert ended(first)[0] == -signal.SIGKILL
    (name,) = read_state(tmp_path / "wandb")
    assert ended(work(tmp_path))[0] == 0
    state = {run: was for run, was in read_state(tmp_path / "wandb").items() if was.live}
    assert [*state] == [name]
    (run,) = [run for run in runs(tmp_path).values() if run.run.job_type == "train"]
    steps = [line["_step"] for line in run.history]
    assert steps == sorted({*steps})
    assert run.summary["status"] == "complete"
    assert "lacks" not in log(tmp_path)


def test_tensorboard_gets_trainings_of_workers(submit: Callable[..., None], tmp_path: Path) -> None:
    submit(*TRAININGS, "logger=tensorboard")
    assert ended(work(tmp_path))[0] == 0
    files = [*(tmp_path / "tensorboard").rglob("events.out.tfevents.*")]
    assert len({file.parent for file in files}) == 2
    assert "its runs for TensorBoard" in log(tmp_path)
    assert f"tensorboard --logdir {tmp_path / 'tensorboard'}" in log(tmp_path)
