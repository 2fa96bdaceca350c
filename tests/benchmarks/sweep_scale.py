"""How long a large sweep takes beyond the work of its cells.

    python tests/benchmarks/sweep_scale.py --cells 10000 --tiny 100 --json rows.jsonl

Prints wall seconds and processor seconds of: a dry run of so many cells, before any has run and
when all are complete; planning a complete sweep again, which runs nothing; asking which cells are
complete; reading all rows, and a report of them; and what each tiny cell costs that does run,
beyond its own work. The store lies in a temporary folder, is filled without waiting for the disk,
and is removed.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from lra.composition.hydra_entry import entries
from lra.composition.runner_class import sections
from lra.composition.selection import kinds
from lra.results.stored import stored
from lra.sweep.cell_list import build
from lra.sweep.cells import run_cell
from reports.report import write_report
from runners.records import Measurement
from runners.storage import atomic
from runners.storage.index import statuses
from runners.store import read_rows

ROOT = Path(__file__).resolve().parents[2]
MODELS = ("linear", "sdpa")
QUIET = ("logger=none", "report=false")
ROWS = 10
"""Of a stored cell."""
TINY = (
    "model=identity", "task=listops", "task.source=sample", "optim.steps=1", "optim.warmup_steps=0",
    "optim.batch_size=2", "model.backbone.depth=1", "model.backbone.width=8",
)  # fmt: skip
"""Words of a training that is nearly nothing."""


@contextmanager
def timed(rows: list[dict[str, Any]], what: str, cells: int) -> Iterator[None]:
    """Print how long the block took, with the processes that it waited for, and add a row."""
    wall, before = time.perf_counter(), _processor()
    yield
    wall, work = time.perf_counter() - wall, _processor() - before
    each = 1000 * wall / cells
    print(f"{what:<52}{wall:8.2f} s wall {work:8.2f} s processor {each:9.2f} ms a cell", flush=True)
    rows.append({"what": what, "cells": cells, "wall_s": wall, "processor_s": work})


def _processor() -> float:
    both = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in both)


def lra(*words: str) -> None:
    """Run `lra run` in a process of its own."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "lra", "run", "-m", *words]
    found = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    if found.returncode:
        raise SystemExit(found.stderr)


def sweep_words(cells: int, root: Path) -> list[str]:
    """Return the words of a sweep over models, learning rates and seeds."""
    seeds = max(1, cells // (len(MODELS) * 5))
    return [
        f"model={','.join(MODELS)}", "task=listops", f"seed=range(0,{seeds})",
        "optim.peak_learning_rate=1e-4,3e-4,1e-3,3e-3,1e-2", "optim.steps=10", "sweep=scale",
        f"results={root}", *QUIET,
    ]  # fmt: skip


def fill(words: Sequence[str]) -> None:
    """Store rows of every cell of a sweep."""
    sweep = build(entries(["-m", *words]))
    curve = [Measurement(metric="train_loss", value=1.0 + n, step=n) for n in range(1, ROWS)]
    score = Measurement(metric="accuracy", value=0.5, labels={"split": "test", "examples": "10"})
    with mock.patch.object(atomic.os, "fsync", return_value=None):
        for planned in sweep.planned:
            sweep.store.write(planned.cell, [*curve, score], [], {"took_s": 1.0})
            sweep.store.record_in_sweep(sweep.name, planned.cell.key)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--tiny", type=int, default=100, help="cells that are run")
    parser.add_argument("--json", type=Path, help="append rows, one JSON object a line")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        measure(rows, Path(folder), arguments.cells)
    with tempfile.TemporaryDirectory() as folder:
        run_tiny(rows, Path(folder), arguments.tiny)
    if arguments.json:
        with arguments.json.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


def measure(rows: list[dict[str, Any]], root: Path, cells: int) -> None:
    """Measure planning and reading of a store under `root`."""
    words = sweep_words(cells, root)
    with timed(rows, "dry run, nothing is stored", cells):
        lra(*words, "runner.dry_run=true")
    fill(words)
    for which in ("first", "again"):
        with timed(rows, f"dry run, all complete, {which}", cells):
            lra(*words, "runner.dry_run=true")
        with timed(rows, f"resume, all complete, {which}", cells):
            lra(*words)

    with timed(rows, "which cells are complete, by the index", cells):
        found = statuses(root)
    assert len(found) == cells
    with timed(rows, "read_rows", cells):
        read_rows(root)
    frame, _, _ = stored(root, None)
    with timed(rows, f"report of {len(frame):,} rows", cells):
        write_report(
            frame, root / "reports" / "all", title="Benchmark", sections=sections(), groups=kinds()
        )


def run_tiny(rows: list[dict[str, Any]], root: Path, cells: int) -> None:
    """Measure what one more tiny cell costs a sweep, and what of it is the cell's own work."""
    words = [*TINY, f"results={root}", "sweep=tiny", *QUIET]
    lra(*words, "seed=0,1")  # which makes the data
    with timed(rows, "sweep of two tiny cells", 2):
        lra(*words, "seed=2,3")
    few = rows[-1]["wall_s"]
    with timed(rows, "sweep of tiny cells", cells):
        lra(*words, f"seed=range(4,{4 + cells})")
    more = (rows[-1]["wall_s"] - few) / (cells - 2)
    sweep = build(entries(["-m", *words, "seed=0"]))
    cell = sweep.planned[0].cell
    argument = {
        **{name: cell.columns[name] for name in ("runner", "mode", "length")},
        "config": cell.config, "trainings": {}, "stored": None,
    }  # fmt: skip
    took = []
    for attempt in range(12):
        begun = time.perf_counter()
        run_cell({**argument, "checkpoints": str(root / "own" / str(attempt))}, lambda _: None)
        took.append(time.perf_counter() - begun)
    own = statistics.median(took[2:])
    lanes = sweep.planned[0].run.hardware.side_by_side()
    beyond = more - own / lanes
    print(
        f"one more tiny cell {more:.3f} s of wall clock; its own work {own:.3f} s, {lanes} side by "
        f"side; the harness {beyond:.3f} s a cell"
    )
    rows.append(
        {"what": "harness", "more_s": more, "own_s": own, "lanes": lanes, "beyond_s": beyond}
    )


if __name__ == "__main__":
    main()
