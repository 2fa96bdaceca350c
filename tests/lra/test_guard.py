import os
import subprocess
import sys
from pathlib import Path

import pytest

from lra import guard

ROOT = Path(guard.__file__).resolve().parent.parent


def run(folder, *, path=(), arguments=("-m", "lra", "list", "hardware")):
    """Run Python in `folder` with `path` before the project on PYTHONPATH."""
    python_path = os.pathsep.join([*map(str, path), str(ROOT)])
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": python_path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def package(folder, name):
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text("raise SystemExit('a stranger was imported')\n")
    return (folder / name).resolve()


def test_the_house_as_it_stands_passes(tmp_path):
    guard.check()
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "a100" in done.stdout


@pytest.mark.parametrize("name", guard.HOUSE)
def test_a_folder_of_the_same_name_in_the_current_directory_is_refused(tmp_path, name):
    stranger = package(tmp_path, name)
    done = run(tmp_path)
    assert done.returncode == 2
    assert str(stranger) in done.stderr
    assert str(ROOT / name) in done.stderr
    assert "Way out" in done.stderr
    assert "Traceback" not in done.stderr
    assert "a stranger was imported" not in done.stderr


def test_a_folder_on_the_python_path_is_refused(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    stranger = package(elsewhere, "tasks")
    done = run(tmp_path, path=[elsewhere])
    assert done.returncode == 2
    assert str(stranger) in done.stderr


def test_a_single_file_of_the_same_name_is_refused(tmp_path):
    (tmp_path / "models.py").write_text("")
    done = run(tmp_path)
    assert done.returncode == 2
    assert str(tmp_path / "models.py") in done.stderr


def test_a_folder_without_init_loses_against_ours_and_is_harmless(tmp_path):
    (tmp_path / "tasks").mkdir()
    assert run(tmp_path).returncode == 0


def test_a_missing_room_is_named(monkeypatch):
    monkeypatch.setattr(guard, "HOUSE", ("cellar",))
    with pytest.raises(guard.Shadowed, match=r"'cellar' beside it.*installation is incomplete"):
        guard.check()
