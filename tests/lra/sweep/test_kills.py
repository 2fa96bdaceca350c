"""Kills at random moments of a small sweep: nothing is lost, nothing doubled, no bit moves."""

import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest
from fuzz import cases
from small_sweeps import run, settled, start

from lra.runners.isolation.descendants import processes_below
from lra.runners.store import read_rows
from tests.lra_process import Program

SWEEP = (
    "-m", "model=linear,performer", "seed=0,1", "model.backbone.dropout=0.1",
    "model.backbone.depth=1", "model.backbone.width=16", "optim.steps=60",
    "runner.log_every_steps=5", "hardware.training_processes=2",
    # A cell whose fork server was killed as well ends in a way that nobody sees: it has crashed.
    "runner.retry=[crashed]",
)  # fmt: skip
OFTEN = "runner.checkpoint_every_s=0.05"
CELLS = 4
LONGEST_S = 200.0
"""A sweep that takes longer hangs."""
TARGETS = ("parent", "one cell", "every cell", "helpers", "all")
NUMBERS = (signal.SIGKILL, signal.SIGTERM)
KILLS = 3
"""In one sweep, before it may end in peace."""


def cells_of(parent: int) -> list[int]:
    """Return the processes in which the cells of a sweep work: each leads a group of its own."""
    found = []
    for pid in processes_below(parent):
        with suppress(ProcessLookupError):
            if os.getpgid(pid) == pid:
                found.append(pid)
    return found


def wait_for_cells(process: Program) -> list[int]:
    """Wait until cells run; an empty list where the sweep ended before that."""
    deadline = time.monotonic() + LONGEST_S
    while process.poll() is None:
        if found := cells_of(process.pid):
            return found
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return []


def strike(process: Program, draw: random.Random) -> str:
    """Kill parent, cells or both at a random moment; return what was done."""
    wait_for_cells(process)
    time.sleep(draw.choice((0.0, 0.1, 1.0)) * draw.random())
    cells = cells_of(process.pid)
    target, number = draw.choice(TARGETS), draw.choice(NUMBERS)
    chosen = {
        "parent": [process.pid],
        "one cell": cells[:1],
        "every cell": cells,
        # fork server, tracker of shared memory
        "helpers": sorted(processes_below(process.pid) - {*cells}),
        "all": [process.pid, *cells],
    }[target]
    draw.shuffle(chosen)
    for pid in chosen:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    return f"{number.name} to {target}"


def finished(results: Path) -> dict[Path, bytes]:
    """Return the rows files of the cells that are done, each whole."""
    found = {}
    for path in results.glob("cells/*/*/rows-*.jsonl"):
        content = path.read_bytes()
        assert content.endswith(b"\n")
        if b'"status":"crashed"' not in content:
            found[path] = content
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LRA_DATA", str(data))
        assert run(folder / "results", *SWEEP) == 0
    return settled(folder / "results")


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(cases(1)))
def test_killed_at_random_and_resumed_equals_an_undisturbed_run(seed, whole, tmp_path):
    draw = random.Random(seed)
    done: dict[Path, bytes] = {}
    kills: Counter[str] = Counter()
    process = None
    while kills.total() < KILLS and len(done) < CELLS:
        if process is None or process.poll() is not None:
            if process is not None and process.stdout is not None:
                process.stdout.close()
            process = start(tmp_path, *SWEEP, OFTEN)
        kills[strike(process, draw)] += 1
        if draw.random() < 0.5:  # the next kill meets a new start, or what is left of this one
            process.send_signal(signal.SIGTERM)
        if draw.random() < 0.5:
            process.communicate(timeout=LONGEST_S)
        now = finished(tmp_path)
        assert done.items() <= now.items(), kills  # no completed cell is lost or done again
        done = now
    if process is not None:
        process.communicate(timeout=LONGEST_S)
    assert run(tmp_path, *SWEEP) == 0, kills
    assert done.items() <= finished(tmp_path).items(), kills
    pd.testing.assert_frame_equal(settled(tmp_path), whole)
    assert read_rows(tmp_path)["cell"].nunique() == CELLS
    assert list((tmp_path / "claims").iterdir()) == []
