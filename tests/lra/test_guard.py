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
@pytest.mark.parametrize("kind", ["package", "module"])
def test_a_stranger_in_the_current_directory_does_not_matter(tmp_path, name, kind):
    if kind == "package":
        package(tmp_path, name)
    else:
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a stranger was imported')\n")
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "a stranger was imported" not in done.stderr


def test_a_stranger_on_the_python_path_does_not_matter(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in guard.HOUSE:
        package(elsewhere, name)
    (elsewhere / "beside.py").write_text("")
    code = "import lra, beside, models, conf, sys; print(models.__path__[0], beside.__file__)"
    done = run(tmp_path, path=[elsewhere], arguments=("-c", code))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(ROOT / "models"), str(elsewhere / "beside.py")]


def test_only_strangers_are_moved(tmp_path, monkeypatch):
    for name in ("strange", "plain", "other"):
        (tmp_path / name).mkdir()
    package(tmp_path / "strange", "models")
    strange, plain, other = (str(tmp_path / name) for name in ("strange", "plain", "other"))
    monkeypatch.setattr("sys.path", [plain, strange, str(ROOT), other, strange])
    guard.settle()
    assert guard.sys.path == [plain, str(ROOT), strange, other]
    monkeypatch.setattr("sys.path", [plain, strange, other])  # lra came by an import hook
    guard.settle()
    assert guard.sys.path == [plain, str(ROOT), strange, other]


def test_a_stranger_that_was_imported_before_is_refused(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "__init__.py").write_text("")
    code = "import models, sys; from lra.cli import main; sys.exit(main(['list', 'hardware']))"
    done = run(tmp_path, path=[tmp_path], arguments=("-c", code))
    assert done.returncode == 2
    assert str((tmp_path / "models").resolve()) in done.stderr
    assert str(ROOT / "models") in done.stderr
    assert "Way out" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_without_init_loses_against_ours_and_is_harmless(tmp_path):
    (tmp_path / "tasks").mkdir()
    assert run(tmp_path).returncode == 0


def test_a_missing_room_is_named(monkeypatch):
    monkeypatch.setattr(guard, "HOUSE", ("cellar",))
    with pytest.raises(guard.Shadowed, match=r"'cellar' beside it.*installation is incomplete"):
        guard.check()
