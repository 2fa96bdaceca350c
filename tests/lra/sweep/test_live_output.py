"""What `lra run` shows of a real sweep: in a pipe, on a terminal, stopped and begun again."""

import fcntl
import os
import pty
import re
import signal
import struct
import termios
import time
from functools import partial
from pathlib import Path

import pytest
from screen import Screen
from small_sweeps import TINY, run, start

from tests.lra_process import HOME, Program

STAMPED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (.*)")
LONGEST_S = 200.0
SMALL = ("model=linear", "model.backbone.depth=1", "model.backbone.width=16")
RESUMED = re.compile(r"resumed at step (\d+)")


def told(text: str) -> list[str]:
    """The lines of the board, without their time stamps."""
    return [match[1] for line in text.splitlines() if (match := STAMPED.fullmatch(line))]


def test_a_sweep_in_a_pipe_says_what_it_does_as_it_does_it(tmp_path: Path) -> None:
    words = ("-m", "optim.steps=6,8", "hardware.training_processes=1", *SMALL)
    process = start(tmp_path, *words)
    seen = []
    while not seen or not seen[-1].endswith("begun\n"):  # which comes while the cell still runs
        seen.append(process.stdout.readline().decode())
    assert process.poll() is None
    text = "".join(seen) + process.communicate(timeout=LONGEST_S).decode()
    assert process.returncode == 0
    assert all(letter.isprintable() or letter == "\n" for letter in text)
    lines = told(text)
    base = "train linear on listops, seed 0, steps"
    assert re.fullmatch(r"sweep adhoc: 2 runs to do\b.*; results in .*", lines[0])
    names = [f"[1/2] {base}=6", f"[2/2] {base}=8"]
    kept = [line for line in lines if line.endswith(": begun") or ": accuracy" in line]
    assert kept[::2] == [f"{name}: begun" for name in names]
    for line, beginning in zip(kept[1::2], names, strict=True):
        assert re.fullmatch(re.escape(beginning) + r": accuracy \d+\.\d% \(.*\)", line)
    assert re.fullmatch(rf"2 runs in .*: 2 ok; results in {re.escape(str(tmp_path))}", lines[-1])


@pytest.mark.parametrize("flag", ["--quiet", "-v"])
def test_less_and_more(flag: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, *SMALL, "runner.checkpoint_every_s=0.001", flag) == 0
    lines = told(capfd.readouterr().out)
    if flag == "--quiet":
        assert [re.sub(" in .*:", ":", line) for line in lines] == [
            f"1 run: 1 ok; results in {tmp_path}"
        ]
        assert run(tmp_path, *SMALL, "model.backbone.heads=3", flag) == 1
        said = told(capfd.readouterr().out)
        assert len(said) == 2
        assert "unsupported: heads must divide width" in said[0]
        return
    (key,) = (path.name for path in tmp_path.glob("cells/*/*"))
    text = "\n".join(lines)
    for words in (f"key {key}", "log.txt", "checkpoints ", ": building", "checkpoint of step"):
        assert words in text


def test_flags_of_volume_change_no_exit_code_and_are_refused_together(
    tmp_path: Path, capsys
) -> None:
    assert run(tmp_path, "-q", "-v") == 2
    assert "got -q and -v; give only one of them" in capsys.readouterr().err


def test_a_stopped_training_says_where_it_goes_on(tmp_path: Path) -> None:
    long = ("optim.steps=3000", *SMALL)
    process = start(tmp_path, *long, "-v")
    assert process.stdout is not None
    for line in process.stdout:
        if b": step " in line:
            break
    process.send_signal(signal.SIGTERM)
    text = process.communicate(timeout=LONGEST_S).decode()
    assert process.returncode == 143
    assert ": saved half-way: interrupted by SIGTERM (" in text
    assert "1 saved half-way" in text
    process = start(tmp_path, *long, "-v")
    seen = ""
    while "left" not in seen.rpartition("resumed")[2]:
        seen += process.stdout.readline().decode()
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=LONGEST_S)
    found = RESUMED.search(seen)
    step = int(found[1])
    assert 0 < step < 3000
    first = re.search(r": step ([\d,]+)/3,000, loss \S+, lr \S+, \S+ examples/s, ", seen)
    assert int(first[1].replace(",", "")) > step
    (log,) = tmp_path.glob("cells/*/*/log.txt")
    assert f"resumed at step {step}" in log.read_text()


def on_a_terminal(columns: int, *words: str) -> tuple[int, Screen, list[list[str]]]:
    """Run `lra run` on a terminal; return status, screen and what it showed along the way."""
    screen, shown = Screen(columns), []
    end, terminal = pty.openpty()
    program = Program(
        ["run", *words],
        env=os.environ | {"TERM": "xterm", "PYTHONPATH": str(HOME)},
        prepare=partial(os.login_tty, 0),
        files=(terminal,) * 3,
    )
    os.close(terminal)
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    rest, deadline = b"", time.monotonic() + LONGEST_S
    while time.monotonic() < deadline:
        try:
            data = os.read(end, 1 << 16)
        except OSError:
            break
        rest += data
        whole, mark, rest = rest.rpartition(b"\x1b")  # no escape and no letter is torn
        if mark:
            screen.feed(whole.decode().replace("\r\n", "\n"))
            rest = mark + rest
            shown.append(screen.text)
    screen.feed(rest.decode().replace("\r\n", "\n"))
    os.close(end)
    return program.wait(LONGEST_S), screen, shown


@pytest.mark.parametrize("columns", [40, 100])
def test_a_terminal_shows_the_step_and_is_clean_at_the_end(columns: int, tmp_path: Path) -> None:
    words = (*TINY, "optim.steps=300", *SMALL, f"results={tmp_path / 'r'}")
    status, screen, shown = on_a_terminal(columns, *words)
    assert status == 0
    states = [line for text in shown for line in text if ": begun" not in line and "step " in line]
    wanted = r" *\d+% step \d+/300(, loss [\d.]+)?(, \d+ s left)?"
    if columns == 100:
        wanted = r" *\d+% \|.{5,10}\| step \d+/300, loss [\d.]+, lr \S+, \S+ examples/s, \d+ s left"
    matching = [line for line in states if re.fullmatch(wanted, line)]
    assert matching, states[-5:]
    assert all(len(line) < columns for line in states)
    final = "".join(screen.text)
    assert not re.search(r"(?<![\d.])\d+% ", final)
    assert "train linear on listops, seed 0: accuracy" in final
    assert "1 ok; results in" in final
