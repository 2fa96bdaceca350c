"""The folder for temporary files is cleaned, taken away or full: work goes on, or says so."""

import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import isolated_jobs as jobs
import pytest
from isolated import done

from lra.runners.isolation import isolate, temporary
from lra.runners.isolation.isolate import Ending, Job, start
from lra.runners.records import Status
from lra.runners.storage.atomic import Unwritable, fault_of

OK = Ending(Status.ok, "", interrupted=False)


@pytest.fixture
def folder(bare_server: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files, short enough for a socket, with a fork server of its own."""
    made = Path(tempfile.mkdtemp(prefix="lra-t-", dir="/tmp"))
    process: Any = multiprocessing.current_process()
    before = process._config.pop("tempdir", None)
    monkeypatch.setenv("TMPDIR", str(made))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield made
    process._config.pop("tempdir", None)
    if before is not None:
        process._config["tempdir"] = before
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.parametrize("cleaned", ["content", "folder"])
def test_work_goes_on_in_a_folder_that_was_cleaned(
    folder: Path, cleaned: str, tmp_path: Path
) -> None:
    assert done(jobs.many, 1)[1] == OK
    release = tmp_path / "release"
    running = start(Job(function=jobs.wait_for, argument=str(release)))
    (own,) = folder.glob(f"{temporary.PREFIX}*")
    shutil.rmtree(own if cleaned == "content" else folder)
    assert done(jobs.many, 1)[1] == OK
    assert folder.is_dir()
    release.touch()
    while running.ending is None:
        running.poll()
    assert running.ending == OK


def test_a_folder_that_cannot_be_made_anew_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(folder)
    tempfile.tempdir = str(folder)
    folder.write_text("a file in its place")
    with pytest.raises(Unwritable, match=f"cannot write to {folder}.*set TMPDIR") as refused:
        isolate.start_server()
    assert "Rerun the same command to resume" in str(refused.value)
    assert fault_of(refused.value)
    folder.unlink()

    def none(*_: object) -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/a', '/b']")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    with pytest.raises(Unwritable, match=r"found in \['/a', '/b'\]: free some space there, or set"):
        isolate.start_server()


def test_what_a_killed_process_left_there_goes_and_what_is_held_stays(folder: Path) -> None:
    code = (
        "from lra.runners.isolation import temporary\nimport os, signal\n"
        "print(temporary.process_folder(), flush=True)\ninput()\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"TMPDIR": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        left = Path(process.stdout.readline().strip())
        assert left.parent == folder
        temporary._remove_leftovers(folder)
        assert left.is_dir()
        process.stdin.write("\n")
        process.stdin.flush()
        process.wait()
    assert left.is_dir()
    (folder / "pymp-other").mkdir()
    own = temporary.process_folder()
    assert {*folder.iterdir()} == {own, folder / "pymp-other"}
    assert own.stat().st_mode & 0o777 == 0o700
    assert temporary.process_folder() == own
