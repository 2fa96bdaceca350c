"""`lra submit` before anything is started: missing data, cells that join others, a dry run."""

from pathlib import Path

import pytest

from lra.cli import main
from lra.cluster.local import LocalEngine
from lra.cluster.state import WorkerState
from lra.tasks.data import sources
from tests.lra.sweep.small_sweeps import TINY

TEXT = ("task=text", "model=identity", "logger=none", "report=false")


def test_data_that_cannot_be_had_are_told_before_anything_is_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LRA_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("urllib.request.urlopen", unreachable)
    monkeypatch.setattr(LocalEngine, "submit", lambda *_: pytest.fail("submitted"))
    results = tmp_path / "results"
    words = [*TEXT, f"results={results}"]
    for command in (["plan"], ["submit", "runner.dry_run=true"]):
        assert main([*command, *words]) == 0
        assert "text is not prepared in " in capsys.readouterr().out
    assert main(["submit", *words]) == 2
    assert f"put it at {sources.data_root() / 'downloads'}" in capsys.readouterr().err
    assert not results.exists()


def unreachable(*_: object, **__: object) -> None:
    raise OSError("no network")


def test_cells_that_join_a_sweep_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(LocalEngine, "submit", lambda *_: [])
    words = [*TINY, "model=identity", f"results={tmp_path}", "sweep=mine"]
    assert main(["submit", *words, "seed=0,1"]) == 0
    assert "runs added" not in capsys.readouterr().out
    folder = tmp_path / "plans" / "mine"
    WorkerState(folder, "one", "").say("running")
    WorkerState(folder, "two", "").over(0, "")
    for dry in (["runner.dry_run=true"], []):
        assert main(["submit", *words, "seed=1,2,3", "cluster.workers=1", *dry]) == 0
        text = capsys.readouterr().out
        assert (
            "added to the 2 runs of sweep mine\n1 worker of this sweep is already running\n" in text
        )
        if dry:
            assert f"1 worker (all) with 1 thread each; their logs are in {folder / 'logs'}" in text
