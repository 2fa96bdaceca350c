"""How fast a large store is read: `python tests/benchmarks/store.py --json rows.jsonl`.

Makes a store of about 100,000 rows in some 5,000 cells (trainings with curves, timings over
lengths) in a temporary folder, and removes it. Prints wall seconds and processor seconds: on a
shared machine only the second says what the work costs.
"""

import argparse
import importlib
import json
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lra.composition.runner_class import sections
from lra.composition.selection import kinds
from lra.results.stored import stored
from reports.report import write_report
from runners.records import Cell, Measurement
from runners.storage import atomic
from runners.storage.audit import audit
from runners.store import Store, read_rows

Rows = list[dict[str, Any]]

MODELS = (
    "softmax", "sdpa", "linear", "performer", "cosformer", "linformer", "nystromformer",
    "reformer", "sinkhorn", "luna", "longformer", "big_bird", "local", "synthesizer", "fnet",
    "yoso", "skyformer", "h_transformer", "sliding_window", "identity",
)  # fmt: skip
TASKS = ("listops", "text", "retrieval", "image", "pathfinder")
LENGTHS = tuple(2**power for power in range(8, 18))
CELL = {
    "task_version": 1, "source": "generated", "causal": False, "hardware": "cpu",
    "device": "some processor", "precision": "float32", "threads": 2,
}  # fmt: skip


@contextmanager
def timed(rows: Rows, what: str) -> Iterator[None]:
    """Print how long the block took, and add a row."""
    wall, usage = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    yield
    now = resource.getrusage(resource.RUSAGE_SELF)
    wall = time.perf_counter() - wall
    work = now.ru_utime + now.ru_stime - usage.ru_utime - usage.ru_stime
    print(f"{what:<58}{wall:8.2f} s wall {work:8.2f} s processor", flush=True)
    rows.append({"what": what, "wall_s": wall, "processor_s": work})


def cell(runner: str, **columns: Any) -> Cell:
    """Return a cell with a configuration of the usual size."""
    full = {**CELL, "runner": runner, **columns}
    options = {f"option_{number}": number for number in range(20)}
    identity = {
        "schema": 1, "runner": {"name": runner}, "mixer": options, "optim": options,
        **{name: full[name] for name in ("model", "mode", "length", "seed")},
        "task": {"name": full["task"], "version": 1},
    }  # fmt: skip
    config = dict.fromkeys(("model", "task", "hardware", "optim", "runner"), options)
    words = ("-m", "+experiment=something", f"model={full['model']}")
    return Cell(identity=identity, columns=full, config=config, overrides=words, fingerprint="f00d")


def trained(generator: np.random.Generator, steps: int) -> list[Measurement]:
    """Return a curve and what follows it."""
    curve = 2.0 * np.exp(-np.arange(steps) / 30) + 0.1 * generator.random(steps) + 0.5
    found = [
        Measurement(metric="train_loss", value=float(loss), step=50 * number)
        for number, loss in enumerate(curve, start=1)
    ]
    for split in ("validation", "test"):
        told = {"split": split, "examples": "2000", "weights": "last"}
        share = float(0.3 + 0.2 * generator.random())
        found.append(Measurement(metric="accuracy", value=share, labels=told))
        found.append(Measurement(metric="loss", value=1.0 + share, labels=told))
    return [*found, Measurement(metric="train_time", value=100.0)]


def measured(generator: np.random.Generator, length: int) -> list[Measurement]:
    """Return the rows of one length beside one reference."""

    def samples(typical: float) -> dict[str, Any]:
        drawn = typical * (1 + 0.05 * generator.random(15))
        return {"value": float(np.median(drawn)), "samples": tuple(map(float, drawn))}

    told = {"reference": "sdpa", "kernel": "flash_attention_for_cpu"}
    return [
        Measurement(metric="time", **samples(1e-6 * length)),
        Measurement(metric="reference_time", labels=told, **samples(1e-9 * length**2)),
        Measurement(metric="time_ratio", labels=told, **samples(1e3 / length)),
        Measurement(metric="peak_tensor_bytes", value=4096.0 * length),
        Measurement(metric="reference_peak_tensor_bytes", value=9000.0 * length, labels=told),
        Measurement(metric="peak_tensor_bytes_ratio", value=0.45, labels=told),
        Measurement(metric="tokens_per_second", value=1e6),
        Measurement(metric="batch_size", value=4.0),
        Measurement(metric="timed_steps", value=15.0),
        Measurement(metric="parameters", value=65_000.0),
    ]


def fill(store: Store, scale: float) -> None:
    """Write trainings and timings, half of the rows each."""
    generator = np.random.default_rng(0)
    steps = max(2, round(95 * scale))
    for model in MODELS:
        for task in TASKS:
            for seed in range(5):
                own = cell("train", mode="train", model=model, task=task, length=512, seed=seed)
                store.write(own, trained(generator, steps), [], {"torch": "2"})
                store.record_in_sweep("trainings", own.key)
        for length in LENGTHS:
            for mode in ("forward", "step"):
                for seed in range(max(1, round(12 * scale))):
                    own = cell(
                        "scaling", mode=mode, model=model, task="listops", length=length, seed=seed
                    )
                    store.write(own, measured(generator, length), [], {"torch": "2"})


SHAPES = ((10_000, 10), (2_000, 50))
"""Cells, and rows of each: many timings, or many trainings with curves."""


def fill_shape(store: Store, cells: int, each: int) -> None:
    """Write cells of one kind: timings where they have ten rows, and trainings otherwise."""
    generator = np.random.default_rng(0)
    for number in range(cells):
        model, task = MODELS[number % 20], TASKS[number // 20 % 5]
        if each == 10:
            length, seed = LENGTHS[number // 100 % 10], number // 1000
            own = cell("scaling", mode="step", model=model, task=task, length=length, seed=seed)
            store.write(own, measured(generator, length), [], {"torch": "2"})
        else:
            own = cell(
                "train", mode="train", model=model, task=task, length=512, seed=number // 100
            )
            store.write(own, trained(generator, each - 5), [], {"torch": "2"})


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="1 = about 100,000 rows")
    parser.add_argument("--json", type=Path, help="append rows, one JSON object a line")
    arguments = parser.parse_args()
    # The disk is not what is measured, and 20,000 files would wait for it for minutes.
    atomic.os.fsync = lambda descriptor: None  # type: ignore[attr-defined]
    importlib.import_module("pandas")  # nor is its import, which the first table would pay for
    with tempfile.TemporaryDirectory() as folder:
        rows = run(Path(folder), arguments.scale)
    for cells, each in SHAPES:
        cells = max(100, round(cells * arguments.scale))
        with tempfile.TemporaryDirectory() as folder:
            fill_shape(Store(Path(folder)), cells, each)
            for what, read in (("read_rows", read_rows), ("stored", partial(stored, sweep=None))):
                with timed(rows, f"{what}, {cells:,} cells of {each} rows"):
                    read(Path(folder))
    if arguments.json:
        with arguments.json.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


def run(root: Path, scale: float) -> Rows:
    """Measure, print, and return what was printed."""
    rows: Rows = []
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
    with timed(rows, "making the store, without waiting for the disk"):
        fill(Store(root), scale)
    cells = len(list(root.glob("cells/*/*")))
    for _ in range(3):
        with timed(rows, f"read_rows, {cells:,} cells"):
            count = len(read_rows(root))
        rows[-1]["rows"] = count
    print(f"{count:,} rows")
    with timed(rows, "load of the report: rows, descriptions, names"):
        frame, _, _ = stored(root, None)
    with timed(rows, "tables, figures and pages of the report"):
        write_report(
            frame, root / "reports" / "all", title="Benchmark", sections=sections(), groups=kinds()
        )
    with timed(rows, "lra doctor --store"):
        audit(root)
    return rows


if __name__ == "__main__":
    main()
