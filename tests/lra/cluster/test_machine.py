"""The lock of the machine: of all its users, wherever their temporary files lie."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lra.cluster import machine as module
from lra.cluster.machine import machine
from tests.lra_process import HOME

HOLDER = """
import os, sys
from lra.cluster.machine import machine
if len(sys.argv) > 2:
    os.setuid(int(sys.argv[2]))
with machine(alone=sys.argv[1] == "alone", waiting=lambda: print("waits", flush=True)) as fault:
    print("has it" if not fault else fault, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no sweep of another test, which times its cells on the same cores, be waited for."""
    monkeypatch.setenv(module.VISIBLE, f"of-a-test-{os.getpid()}")


class Overtaken(Exception):
    """It would have had to wait."""


def refuse() -> None:
    raise Overtaken


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[object]:
    """Start a process that uses the machine, with a folder for temporary files of its own."""
    with ExitStack() as started:

        def start(kind: str, *user: str) -> subprocess.Popen[str]:
            folder = tmp_path / f"tmp-{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            folder.chmod(0o777)
            process = subprocess.Popen(
                [sys.executable, "-c", HOLDER, kind, *user], cwd=HOME, text=True,
                env={**os.environ, "TMPDIR": str(folder), "HOME": str(folder)},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
            started.enter_context(process)
            started.callback(process.kill)
            return process

        yield start


def said(process: subprocess.Popen[str]) -> str:
    return process.stdout.readline().strip()


@pytest.mark.parametrize(
    ("first", "second", "waits"),
    [("alone", "alone", True), ("alone", "with others", True), ("with others", "alone", True),
     ("with others", "with others", False)],
)  # fmt: skip
def test_workers_with_folders_of_their_own_see_each_other(first, second, waits, holder):
    before = holder(first)
    assert said(before) == "has it"
    after = holder(second)
    assert said(after) == ("waits" if waits else "has it")
    before.kill()  # the kernel frees what a killed one had
    before.wait()
    if waits:
        assert said(after) == "has it"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_workers_of_another_user_are_seen(holder):
    assert said(holder("alone", "65534")) == "has it"
    with pytest.raises(Overtaken), machine(alone=False, waiting=refuse):
        pass


def test_one_that_waits_is_not_overtaken(holder):
    with machine(alone=False, waiting=refuse) as fault:
        assert fault == ""
        alone = holder("alone")
        assert said(alone) == "waits"
        with pytest.raises(Overtaken), machine(alone=False, waiting=refuse):
            pass
    assert said(alone) == "has it"


def test_a_stopped_process_keeps_it(holder):
    alone = holder("alone")
    assert said(alone) == "has it"
    alone.send_signal(signal.SIGSTOP)
    with pytest.raises(Overtaken), machine(alone=True, waiting=refuse):
        pass


def test_a_temporary_folder_without_locks_is_no_matter(monkeypatch, tmp_path):
    def refused(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("fcntl.flock", refused)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with machine(alone=True, waiting=refuse) as fault:
        assert fault == ""


@pytest.mark.parametrize("how", ["no list", "another list", "no names", "another system"])
def test_where_there_is_no_lock_it_says_why(how, monkeypatch, tmp_path):
    if how == "no list":
        monkeypatch.setattr(module, "NAMES", tmp_path / "none")
    elif how == "another list":
        (tmp_path / "empty").write_text("Num RefCount\n")
        monkeypatch.setattr(module, "NAMES", tmp_path / "empty")
    elif how == "no names":
        monkeypatch.setattr(module, "_take_name", no_names)
    else:
        monkeypatch.setattr(sys, "platform", "darwin")
    for alone in (True, False):
        with machine(alone=alone, waiting=refuse) as fault:
            assert fault


def no_names(name: str) -> None:
    raise module.NoLock("this system does not support abstract socket names")
