"""How a training state gets to the disk: in one copy, and with one behind it at every moment."""

import io
import os
import pickle
import resource
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from lra.runners.storage import atomic
from lra.runners.training import checkpoint
from lra.runners.training.checkpoint import PREVIOUS, RESUME, WEIGHTS, Checkpoints

WATCHED = {atomic.__file__, checkpoint.__file__}


def state(step: int) -> dict[str, Any]:
    return {"step": step, "weights": torch.arange(4096.0) + step}


def steps(kept: Checkpoints) -> list[int]:
    """Of the states that can be read, each looked into."""
    found = [each for _, each in kept.states()]
    assert all(torch.equal(each["weights"], state(each["step"])["weights"]) for each in found)
    return [each["step"] for each in found]


def in_child(act: Callable[[], None]) -> int:
    """Return how a copy of this process ended that did something: its status, or less a signal."""
    number = os.fork()
    if number == 0:
        status = 1
        try:
            act()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


def left_by_kills(act: Callable[[], None], folder: Path) -> list[dict[Path, bytes]]:
    """Return what a kill before each line of what writes files would leave, as far as it differs.

    A copy of this process looks before every line: what the system has taken survives a kill.
    """
    found: list[dict[Path, bytes]] = []

    def look() -> None:
        files = {path: path.read_bytes() for path in folder.iterdir()}
        if files not in found[-1:]:
            found.append(files)

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        del argument
        if frame.f_code.co_filename not in WATCHED:
            return None
        if event == "line":
            look()
        return trace

    with tempfile.TemporaryFile() as seen:

        def traced() -> None:
            sys.settrace(trace)
            act()
            sys.settrace(None)
            look()
            pickle.dump(found, seen)
            seen.flush()

        assert in_child(traced) == 0
        seen.seek(0)
        return list(pickle.load(seen))  # noqa: S301 - from our own copy


def put_back(files: dict[Path, bytes], folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    for path, content in files.items():
        path.write_bytes(content)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkpoints:
    """Two states; what the system has taken survives the process, so nothing need be flushed."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state(1))
    checkpoints.save(state(2))
    return checkpoints


def test_a_kill_between_any_two_lines_leaves_the_last_state(
    kept: Checkpoints, tmp_path: Path
) -> None:
    first, found = {*tmp_path.iterdir()}, []
    for left in left_by_kills(lambda: kept.save(state(3)), tmp_path):
        put_back(left, tmp_path)
        if (there := steps(kept)) not in found[-1:]:
            found.append(there)
        kept.save(state(4))
        assert steps(kept) == [4, there[0]]
        assert {*tmp_path.iterdir()} == first
    assert found == [[2, 1], [2], [3, 2]]  # as before; the last is aside; the new one is there


def test_a_kill_between_any_two_lines_of_the_end_leaves_weights_or_states(
    kept: Checkpoints, tmp_path: Path
) -> None:
    found: list[str] = []
    for files in left_by_kills(lambda: kept.finish({"weight": torch.ones(3)}), tmp_path):
        put_back(files, tmp_path)
        left = str([*kept.weights()]) if kept.finished() else str(steps(kept))
        if left not in found[-1:]:
            found.append(left)
    assert found == ["[2, 1]", "['weight']"]
    assert [path.name for path in tmp_path.iterdir()] == [WEIGHTS]


@pytest.mark.parametrize("at", [0, 1, 100, 4000, 16_000])
@pytest.mark.parametrize("killed", [False, True])
def test_a_write_that_ends_in_the_middle_leaves_both_states(
    at: int, killed: bool, kept: Checkpoints, tmp_path: Path
) -> None:
    """The system ends it after so many bytes: by an error, or with the process."""

    def limited() -> None:
        if killed:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (at, at))
        with pytest.raises(atomic.Unwritable, match="raise the file size limit"):
            kept.save(state(3))
        assert sorted(path.name for path in tmp_path.iterdir()) == [PREVIOUS, RESUME]

    assert in_child(limited) == (-signal.SIGXFSZ if killed else 0)
    assert steps(kept) == [2, 1]
    kept.save(state(3))
    assert steps(kept) == [3, 2]


@pytest.mark.parametrize("failing", [1, 2])
@pytest.mark.parametrize("number", [5, 28])
def test_a_rename_that_fails_leaves_the_last_state(
    failing: int, number: int, kept: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that may pass is tried again; the disk may be full for good."""
    calls, replace = [], os.replace

    def failed(*paths: object) -> None:
        calls.append(paths)
        if len(calls) == failing:
            raise OSError(number, os.strerror(number), str(paths[0]))
        replace(*paths)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "replace", failed)
    if number == 5:
        kept.save(state(3))
        assert steps(kept) == [3, 2]
        return
    with pytest.raises(atomic.Unwritable, match="free some space"):
        kept.save(state(3))
    assert steps(kept) == ([2, 1] if failing == 1 else [2])
    kept.save(state(4))
    assert steps(kept) == [4, 2]


def test_what_a_file_refuses_is_raised_as_it_is() -> None:
    """PyTorch says in its own words that a position is unexpected."""

    class Refusing(io.RawIOBase):
        def __init__(self, at: int) -> None:
            self.at, self.calls = at, 0

        def writable(self) -> bool:
            return True

        def write(self, data: memoryview) -> int:
            self.calls += 1
            if self.calls == self.at:
                raise OSError(28, os.strerror(28))
            return len(data)

    whole = Refusing(0)
    checkpoint._write(state(1), whole)  # type: ignore[arg-type]
    assert whole.calls > 10
    for at in range(1, whole.calls + 1):
        with pytest.raises(OSError, match="No space left") as caught:
            checkpoint._write(state(1), Refusing(at))  # type: ignore[arg-type]
        assert caught.value.errno == 28


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the system does not count what is asked"
)
def test_a_state_is_written_once_and_held_once(tmp_path: Path) -> None:
    """In a process of its own: the peak of its memory, and all bytes that it writes."""
    size = 64 << 20
    out = tmp_path / "counts"

    def status(name: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith(name)))

    def written() -> int:
        return int(Path("/proc/self/io").read_text().split("wchar:")[1].split()[0])

    def saving() -> None:
        kept = Checkpoints(tmp_path / "kept")
        part = size // 16
        large = {
            "one": torch.ones(2 * part),  # of 4 bytes: half of all
            "many": {str(number): torch.ones(part // 4) for number in range(8)},
        }
        for _ in range(3):
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
            held, before = status("VmRSS"), written()
            kept.save(large)
            counts = f"{status('VmHWM') - held} {written() - before}\n"
            with out.open("a") as file:
                file.write(counts)

    assert in_child(saving) == 0
    for line in out.read_text().splitlines():
        peak, bytes_written = map(int, line.split())
        assert peak <= 0.1 * size
        assert size <= bytes_written <= 1.01 * size
