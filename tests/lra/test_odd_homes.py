"""Users without a home folder, with one that may not be written, in folders of odd names."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lra.cli import message
from lra.conf.cached_texts import data_root
from tests import lra_process


def lra(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("HOME", "LRA_DATA", "XDG_CACHE_HOME")}
    return lra_process.run(words, cwd=folder, env={**kept, **variables})


def test_without_a_home_the_variable_is_named(monkeypatch) -> None:
    monkeypatch.delenv("LRA_DATA", raising=False)

    def nobody(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", nobody)
    with pytest.raises(ValueError, match=r"no home folder.*LRA_DATA"):
        data_root()


@pytest.mark.parametrize("home", ["/proc/nobody", "/dev/null"])
def test_a_home_that_takes_no_folder_is_answered_with_the_variable(home, tmp_path) -> None:
    done = lra(tmp_path, "data", "prepare", "listops", "source=sample", HOME=home)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f": {home}" in line
    assert "set the environment variable LRA_DATA" in line


def test_other_missing_files_are_not_taken_for_the_cache(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("LRA_DATA", str(tmp_path / "cache"))
    for path in (tmp_path / "cache" / "listops" / "x", tmp_path / "other"):
        assert "LRA_DATA" not in message(FileNotFoundError(2, "No such file", str(path)))
    assert "LRA_DATA" in message(PermissionError(13, "Permission denied", str(tmp_path / "cache")))


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are bytes on Linux alone")
def test_wandb_in_a_folder_that_is_not_utf8_is_refused_before_the_run(tmp_path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe"))
    folder.mkdir()
    words = ("run", "model=linear", "task=listops", "task.source=sample", "runner.dry_run=true")
    variables = {"LRA_DATA": str(tmp_path / "data"), "HOME": str(tmp_path)}
    done = lra(folder, *words, "logger=wandb_offline", **variables)
    assert done.returncode == 2
    assert "wanted a folder whose name is UTF-8" in done.stderr
    assert lra(folder, *words, "logger=none", **variables).returncode == 0
