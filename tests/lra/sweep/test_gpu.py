"""Whole runs on a GPU: trained, gone on with, measured, compiled, and out of memory."""

import os
import signal
import time
from pathlib import Path

import pytest
from small_sweeps import BRIEF, run, settled, start

from lra.runners.store import read_rows

DEVICE = os.environ.get("LRA_TEST_HARDWARE", "laptop_gpu")
"""Profile of these runs; cpu tries out the tests themselves."""
HARDWARE = (f"hardware={DEVICE}", "hardware.memory_limit_bytes=null")
pytestmark = [] if DEVICE == "cpu" else [pytest.mark.gpu]


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_a_training_is_the_same_twice(tmp_path: Path, precision: str) -> None:
    words = (*HARDWARE, f"hardware.precision={precision}", "model=linear,sdpa", "optim.steps=30")
    rows = []
    for name in "ab":
        assert run(tmp_path / name, "-m", *words) == 0
        rows.append(settled(tmp_path / name))
    assert set(rows[0]["status"]) == {"ok"}
    seen = [each.drop(columns=["peak_tensor_bytes"], errors="ignore") for each in rows]
    values = [each.set_index(["cell", "metric", "step", "labels"])["value"] for each in seen]
    same = [
        each.drop(index="peak_tensor_bytes", level="metric", errors="ignore") for each in values
    ]
    assert len(same[0]) > 4
    assert same[0].to_dict() == same[1].to_dict()


def test_a_training_that_was_stopped_goes_on(tmp_path: Path) -> None:
    words = (*HARDWARE, "model=linear", "optim.steps=1500", "runner.checkpoint_every_s=0.5")
    program = start(tmp_path / "stopped", *words)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "stopped").rglob("*checkpoint*")) and program.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    program.send_signal(signal.SIGTERM)
    program.communicate(timeout=120)
    assert run(tmp_path / "stopped", *words) == 0
    assert run(tmp_path / "whole", *words) == 0
    score = [
        rows[rows["metric"] == "accuracy"]["value"].tolist()
        for rows in (settled(tmp_path / "stopped"), settled(tmp_path / "whole"))
    ]
    assert score[0]
    assert score[0] == score[1]


@pytest.mark.parametrize("compiled", [False, True])
def test_time_and_memory_are_measured(tmp_path: Path, compiled: bool) -> None:
    words = (*HARDWARE, *BRIEF, "runner=scaling", "runner.lengths=[64]", "model=linear,fnet")
    assert run(tmp_path, "-m", *words, f"hardware.compile={str(compiled).lower()}") == 0
    rows = read_rows(tmp_path)
    assert set(rows["status"]) == {"ok"}
    found = set(rows["metric"])
    assert {"time", "peak_tensor_bytes", "saved_bytes"} <= found
    assert ("compile_time" in found) is compiled


def test_too_little_memory_is_a_row_that_says_so(tmp_path: Path) -> None:
    words = (*HARDWARE, *BRIEF, "runner=scaling", "runner.lengths=[8192]", "runner.modes=[step]")
    words = (*words, "model=softmax", "runner.references=[]")
    words = tuple(w for w in words if "memory_limit" not in w)
    run(tmp_path, *words, "hardware.memory_limit_bytes=600000000")
    (row,) = read_rows(tmp_path).query("metric == 'time'").to_dict("records")
    assert row["status"] == "out_of_memory", row
