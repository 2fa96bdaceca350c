"""Under an agent of W&B: exactly one run, the agent's, with its sweep and all that is stored."""

import os
import signal
import time
from pathlib import Path

import pytest

from lra.cli import main
from tests.lra_process import HOME, Program
from tests.reports.dashboard.wandb_server import ServedRun, synced

WORDS = (
    "model=linear", "task=listops", "task.source=sample", "optim.warmup_steps=0",
    "optim.batch_size=8", "model.backbone.depth=1", "model.backbone.width=16", "sweep=handed",
    "report=false", "logger=wandb_offline",
)  # fmt: skip
SHORT = "optim.steps=6"
LONGEST_S = 240


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch, no_account: None) -> pytest.MonkeyPatch:
    """What an agent sets, without its server."""
    monkeypatch.setenv("WANDB_SWEEP_ID", "sweep7")
    monkeypatch.setenv("WANDB_RUN_ID", "run1")
    return monkeypatch


def runs(results: Path) -> list[str]:
    """Return the ids of runs, the oldest first."""
    folders = sorted((results / "wandb").glob("*run-*"))
    return [path.name.rpartition("-")[2] for path in folders]


def sent(agent: pytest.MonkeyPatch, results: Path) -> dict[str, ServedRun]:
    """Return what a server has of them."""
    for name in ("WANDB_SWEEP_ID", "WANDB_RUN_ID"):
        agent.delenv(name, raising=False)
    return {run.id: run for run in synced(results)}


def test_the_one_training_is_the_agents_run_also_where_it_is_complete(
    agent: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    assert main(["run", *WORDS, SHORT, f"results={results}"]) == 0
    assert runs(results) == ["run1"]
    agent.setenv("WANDB_RUN_ID", "run2")
    assert main(["run", *WORDS, SHORT, f"results={results}"]) == 0
    assert runs(results) == ["run1", "run2"]
    served = sent(agent, results)
    assert [*served] == ["run1", "run2"]
    first, second = served.values()
    for run in (first, second):
        assert run.sweep == "sweep7"
        assert 0 <= run.summary["quality/validation_accuracy"] <= 1
        assert run.summary["status"] == "complete"
    assert first.summary["quality/test_accuracy"] == second.summary["quality/test_accuracy"]
    assert second.config["optim__steps"] == 6


def test_without_an_agent_the_run_has_a_name_of_its_own(
    agent: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    agent.delenv("WANDB_SWEEP_ID")  # an id alone is somebody's own business
    assert main(["run", *WORDS, SHORT, f"results={results}"]) == 0
    (run,) = sent(agent, results).values()
    assert (run.id == "run1", run.sweep) == (False, None)


def test_an_agent_whose_run_nobody_writes_is_told(
    agent: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*WORDS, "optim.steps=1", f"results={tmp_path / 'results'}"]
    said = "the agent gets no score; add logger=wandb_online"
    assert main(["run", *words, "logger=none"]) == 0
    assert capsys.readouterr().err.count(said) == 1
    assert not runs(tmp_path / "results")
    assert main(["run", *words]) == 0
    assert said not in capsys.readouterr().err
    agent.delenv("WANDB_SWEEP_ID")
    assert main(["run", *words, "logger=none"]) == 0
    assert said not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("-m", SHORT, "seed=0,1"), "an agent starts a single training: got 2 runs"),
        ((SHORT, "optim__peak_learning_rate=0.1"), "its whole configuration"),
        ((SHORT, "longest_length=512"), "its whole configuration"),
    ],
)
def test_what_an_agent_cannot_have_is_one_sentence(
    agent: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...], wanted: str,
) -> None:  # fmt: skip
    results = tmp_path / "results"
    assert main(["run", *WORDS, *words, f"results={results}"]) == 2
    assert wanted in capsys.readouterr().err
    assert not runs(results)


def test_a_name_that_no_file_can_have_is_refused(
    agent: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent.setenv("WANDB_RUN_ID", "../run")
    assert main(["run", *WORDS, SHORT, f"results={tmp_path}/results"]) == 2
    assert "WANDB_RUN_ID" in capsys.readouterr().err


def test_an_agent_that_ends_its_run_leaves_a_training_that_goes_on(
    agent: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """SIGTERM: the training saves, the command ends with 143, and the run is there."""
    results = tmp_path / "results"
    words = ["run", *WORDS, "optim.steps=100000", "runner.log_every_steps=1", f"results={results}"]
    program = Program(words, env=os.environ | {"PYTHONPATH": str(HOME)})
    deadline = time.monotonic() + LONGEST_S
    while not [*results.glob("wandb/*run-*/run-*.wandb")]:
        assert program.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.5)
    program.send_signal(signal.SIGTERM)
    program.communicate(LONGEST_S)
    assert program.wait() == 128 + signal.SIGTERM
    assert runs(results) == ["run1"]
    assert [*results.glob("cells/*/*/checkpoint-*/resume.pt")]
    (run,) = sent(agent, results).values()
    assert (run.sweep, run.summary["status"]) == ("sweep7", "stopped")
