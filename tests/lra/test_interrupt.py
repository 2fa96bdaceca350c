"""Ctrl-C at any moment of `lra run`, the fork server's imports among them: a word, and 130."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fuzz import cases

from lra.cli import main
from lra.errors import ConfigError
from lra.runners.isolation.descendants import processes_below

WORDS = (
    "run", "model=linear", "task=listops", "task.source=sample", "optim.steps=100000",
    "optim.warmup_steps=0", "model.backbone.depth=1", "model.backbone.width=16", "logger=none",
)  # fmt: skip
MOST_MIB = 200
"""What a fork server comes to, about, before it forks the first cell."""
LONGEST_S = 120


def resident(pids: set[int]) -> float:
    """Return the MiB that processes hold."""
    total = 0
    for pid in pids:
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            continue
    return total * os.sysconf("SC_PAGESIZE") / 2**20


@pytest.mark.fuzz
@pytest.mark.skipif(sys.platform != "linux", reason="moments are found in /proc")
@pytest.mark.parametrize("seed", range(cases(2)))
def test_ctrl_c_at_any_moment_is_no_traceback(seed: int, tmp_path: Path) -> None:
    """The moment is when what was started, the fork server above all, has imported so much."""
    wanted = random.Random(seed).uniform(8, MOST_MIB)
    with subprocess.Popen(
        [sys.executable, "-m", "lra", *WORDS],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # as a shell gives each command a group
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    ) as program:
        deadline = time.monotonic() + LONGEST_S
        while program.poll() is None and resident(processes_below(program.pid)) < wanted:
            if time.monotonic() > deadline:  # it needs less here: then in the middle of training
                break
            time.sleep(0.005)
        os.killpg(program.pid, signal.SIGINT)
        said, _ = program.communicate(timeout=LONGEST_S)
    told = f"at {wanted:.0f} MiB: {program.returncode}, {said}"
    assert "Traceback" not in said, told
    assert "Exception ignored" not in said, told
    assert "leaked" not in said, told
    # A shell says 130 of both: Python ends by the signal where it met text that was being executed.
    assert program.returncode in (130, -signal.SIGINT), told


def half_made(_: list[str]) -> int:
    """Fail as code does that cleans up after what an interrupt left half made."""
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        error = AttributeError("'NoneType' object has no attribute 'flags'")
        raise ConfigError("it cannot be composed") from error


def test_an_error_that_an_interrupt_led_to_is_the_interrupt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lra.commands.run.main", half_made)
    assert main(["run"]) == 130
    assert capsys.readouterr().err == "interrupted\n"
