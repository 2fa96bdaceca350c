"""The version that a clone says of itself is the one that its wheel would have."""

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest
from setuptools_scm import get_version

import lra
from lra.sweep.cells import environment
from lra.version import lra_version
from tests.lra_process import HOME


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org")
    subprocess.run(["git", *who, "-C", str(folder), *words], check=True, capture_output=True)


def said(folder: Path) -> str:
    """What the module says that lies in a folder."""
    spec = importlib.util.spec_from_file_location("its_version", folder / "lra" / "version.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.lra_version()


@pytest.mark.filterwarnings("ignore")  # of the tool, about options of a clone
def test_a_tag_is_a_version_and_later_commits_are_on_the_way_to_the_next(tmp_path: Path) -> None:
    (tmp_path / "lra").mkdir()
    shutil.copy(HOME / "lra" / "version.py", tmp_path / "lra")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    seen = []
    for tag in ("", "v0.2.0", "", "v1.0"):
        git(tmp_path, "commit", "-q", "--allow-empty", "-m", "x")
        if tag:
            git(tmp_path, "tag", tag)
        seen.append(said(tmp_path))
        assert seen[-1] == get_version(root=str(tmp_path))
    assert [each.partition("+")[0] for each in seen] == ["0.1.dev1", "0.2.0", "0.2.1.dev1", "1.0"]


def test_without_git_it_is_that_of_what_is_installed(tmp_path: Path) -> None:
    (tmp_path / "lra").mkdir()
    shutil.copy(HOME / "lra" / "version.py", tmp_path / "lra")
    assert said(tmp_path) == importlib.metadata.version("lra")


def test_all_that_tell_it_agree() -> None:
    assert lra.__version__ == environment()["lra"] == lra_version()
