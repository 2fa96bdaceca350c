"""Runs that were written for a results folder, in a copy of it."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from lra.reports.dashboard.state import (
    REPORT,
    RUN,
    Mirrored,
    forget_older_reports,
    read_state,
    write_state,
)

OLD, NEW = (
    Mirrored(content="", path="", mode="offline", sweep="s", kind=REPORT, cells={"a": "1"}),
    Mirrored(content="", path="", mode="offline", sweep="s", kind=RUN, cells={"a": "1"}),
)


def written(folder: Path, run: str, mirrored: Mirrored) -> Path:
    path = folder / "runs" / run
    path.mkdir(parents=True)
    write_state(folder, run, replace(mirrored, path=str(path)))
    return path


def test_a_copy_has_its_own_runs_and_removes_none_of_the_original(tmp_path: Path) -> None:
    folder = tmp_path / "original"
    old, _ = (written(folder, name, each) for name, each in (("old", OLD), ("new", NEW)))
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    state = read_state(copy)
    assert state["old"].path == str(copy / "runs/old")
    forget_older_reports(copy, state, "new")
    assert old.is_dir()
    assert not (copy / "runs/old").exists()
    assert read_state(folder)["old"].path == str(old)


@pytest.mark.parametrize("path", ["{}", "/", ".", "..", "../outside", "runs/../..", "\0"])
def test_a_run_that_is_not_below_the_folder_was_never_written(path: str, tmp_path: Path) -> None:
    """As older versions wrote it in the original, or a stranger who wants it removed."""
    folder = tmp_path / "folder"
    written(folder, "old", OLD)
    (file,) = folder.glob("*/old.json")
    told = json.loads(file.read_text())
    file.write_text(json.dumps({**told, "path": path.format(tmp_path / "outside")}))
    assert read_state(folder) == {}


def test_a_path_of_an_older_version_counts_in_its_folder(tmp_path: Path) -> None:
    path = written(tmp_path, "old", OLD)
    (file,) = tmp_path.glob("*/old.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), "path": str(path)}))
    assert read_state(tmp_path)["old"].path == str(path)
