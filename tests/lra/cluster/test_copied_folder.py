"""A results folder that was copied or moved: nothing that is done there reaches the original."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lra.cli import main
from lra.cluster import submissions
from lra.cluster.engine import engine_of
from lra.cluster.local import LocalEngine, job_id
from lra.cluster.plan import StoredPlan, plan_folder
from lra.cluster.state import WorkerState
from lra.runners.storage.seals import DIGEST, seal, unseal
from lra.runners.store import Store
from tests.lra.sweep.small_sweeps import TINY


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What an engine is asked to stop, of which all is under way."""
    asked: list[str] = []
    monkeypatch.setattr(LocalEngine, "stop", lambda _, ids: asked.extend(ids))
    return asked


@pytest.fixture
def original(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which this process holds the one cell of a sweep that was submitted."""
    folder = tmp_path / "original"
    with monkeypatch.context() as patch:
        patch.setattr(LocalEngine, "submit", lambda *_: [job_id(os.getpid())])
        assert main(["submit", *TINY, f"results={folder}", "sweep=some", "model=identity"]) == 0
    plan = StoredPlan(plan_folder(folder, "some"))
    assert Store(folder).claim(plan.entries[0].key, worker="one") is not None
    state = WorkerState(plan.folder, "one", "all")
    state.begin(plan.entries[0].key, "a cell")
    return folder


def watched(results: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, list[object]]:
    capsys.readouterr()
    main(["watch", "some", "--results", str(results), "--json"])
    found: dict[str, list[object]] = json.loads(capsys.readouterr().out)
    return found


def copied(original: Path) -> Path:
    return Path(shutil.copytree(original, original.with_name("copy")))


def moved(original: Path) -> Path:
    return original.rename(original.with_name("moved"))


@pytest.mark.parametrize("how", [copied, moved])
def test_a_copy_stops_nobody_and_says_whom_it_left_alone(
    how: Callable[[Path], Path], original: Path, stopped: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    other = how(original)
    assert main(["submit", "--stop", "some", "--results", str(other)]) == 0
    said = capsys.readouterr()
    assert stopped == []
    assert "sweep some has no running worker" in said.out
    assert f"1 jobs belong to {original}" in said.err
    if how is copied:
        assert f"lra submit --stop some --results {original}" in said.err
        assert main(["submit", "--stop", "some", "--results", str(original)]) == 0
        assert len(stopped) == 1
        assert capsys.readouterr().err == ""
    else:
        assert "to stop them, use their ids, for example " in said.err


@pytest.mark.parametrize("how", [copied, moved])
def test_a_copy_shows_nobody_of_the_original_at_work_and_runs_its_cells(
    how: Callable[[Path], Path], original: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(watched(original, capsys)["running"]) == 1
    other = how(original)
    seen = watched(other, capsys)
    assert (seen["running"], seen["workers"]) == ([], [])
    assert len(seen["notes"]) == 2
    assert str(original) in str(seen["notes"])
    assert main(["run", *TINY, f"results={other}", "sweep=some", "model=identity"]) == 0
    assert f"running processes in this folder belong to {original}" in capsys.readouterr().out
    seen = watched(other, capsys)
    assert (seen["done"], seen["left"]) == (1, 0)


def test_submissions_of_older_versions_are_those_of_their_folder(
    original: Path, stopped: list[str]
) -> None:
    other = copied(original)
    (file,) = (other / "plans/some/submissions").glob("*.json")
    told = {k: v for k, v in unseal(file.read_bytes(), {}).items() if k not in ("home", DIGEST)}
    file.write_bytes(seal(told, indent=1))
    assert main(["submit", "--stop", "some", "--results", str(other)]) == 0
    assert len(stopped) == 1


@pytest.mark.parametrize("change", [{"ids": ["--user=me"]}, {"ids": "a"}, {"options": 3},
                                    {"cluster": None}, {"mark": "--name=a"}, {"mark": 3},
                                    {"place": "here"}, {"place": {"user": 0}}])  # fmt: skip
def test_what_is_no_submission_is_damaged(change: dict[str, object], tmp_path: Path) -> None:
    submissions.Note(tmp_path, engine_of([]), []).add(["7_1"])
    (file,) = tmp_path.glob("submissions/*.json")
    told = {k: v for k, v in unseal(file.read_bytes(), {}).items() if k != DIGEST}
    assert len(submissions.submissions(tmp_path)) == 1
    file.write_bytes(seal({**told, **change}, indent=1))
    assert submissions.submissions(tmp_path) == []
    assert submissions.damaged_files(tmp_path) == [file]
