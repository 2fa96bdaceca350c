"""How long large sweeps and stores take: planning, reading, reports, and the command line.

    python tests/benchmarks/stores.py PART --json ROWS

- `store`: about 100,000 rows in some 5,000 cells (trainings with curves, timings over lengths), and
  as many in cells of one kind: reading, configurations, tables, figures, both documents, audit.
- `sweep`: a dry run of `--cells` cells, before any has run and when all are complete; planning a
  complete sweep again, which runs nothing; asking which cells are complete.
- `tiny`: what each cell costs a sweep that does run, beyond its work.
- `start`: `lra list`, `lra --help`, and `lra run` of one training step, each in a fresh process;
  from the last the imports that it cannot do without are taken off, by paired differences.

Stores lie in temporary folders, are filled without waiting for the disk, and are removed.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from lra.composition.hydra_entry import entries
from lra.composition.runner_class import sections
from lra.composition.selection import kinds
from lra.reports import report
from lra.results.accounts import stored_accounts
from lra.results.stored import stored
from lra.runners.records import Cell, Measurement
from lra.runners.storage import atomic
from lra.runners.storage.audit import audit
from lra.runners.storage.index import statuses
from lra.runners.store import Store, read_rows
from lra.sweep.cell_list import build
from lra.sweep.cells import run_cell
from tests.benchmarks.frame import (
    Rows,
    append,
    command_line,
    interleaved,
    processor_seconds,
    say_machine,
    timed,
)

ROOT = Path(__file__).resolve().parents[2]
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
QUIET = ("logger=none", "report=false", "runner.baselines=false")
TINY = (
    "model=identity", "task=listops", "task.source=sample", "optim.steps=1", "optim.warmup_steps=0",
    "optim.batch_size=2", "model.backbone.depth=1", "model.backbone.width=8",
)  # fmt: skip
"""Words of a training that is nearly nothing."""


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
    rows = [
        Measurement(metric="train_loss", value=float(loss), step=50 * number)
        for number, loss in enumerate(curve, start=1)
    ]
    for split in ("validation", "test"):
        labels = {"split": split, "examples": "2000", "weights": "last"}
        share = float(0.3 + 0.2 * generator.random())
        rows.append(Measurement(metric="accuracy", value=share, labels=labels))
        rows.append(Measurement(metric="loss", value=1.0 + share, labels=labels))
    return [*rows, Measurement(metric="train_time", value=100.0)]


def measured(generator: np.random.Generator, length: int) -> list[Measurement]:
    """Return the rows of one length beside one reference."""

    def samples(typical: float) -> dict[str, Any]:
        drawn = typical * (1 + 0.05 * generator.random(15))
        return {"value": float(np.median(drawn)), "samples": tuple(map(float, drawn))}

    labels = {"reference": "sdpa", "kernel": "flash_attention_for_cpu"}
    return [
        Measurement(metric="time", **samples(1e-6 * length)),
        Measurement(metric="reference_time", labels=labels, **samples(1e-9 * length**2)),
        Measurement(metric="time_ratio", labels=labels, **samples(1e3 / length)),
        Measurement(metric="peak_tensor_bytes", value=4096.0 * length),
        Measurement(metric="reference_peak_tensor_bytes", value=9000.0 * length, labels=labels),
        Measurement(metric="peak_tensor_bytes_ratio", value=0.45, labels=labels),
        Measurement(metric="tokens_per_second", value=1e6),
        Measurement(metric="batch_size", value=4.0),
        Measurement(metric="timed_steps", value=15.0),
        Measurement(metric="parameters", value=65_000.0),
    ]


def fill(store: Store, trainings: int, steps: int, timings: int) -> None:
    """Write trainings of each model on each task, and timings of each model at each length."""
    generator = np.random.default_rng(0)
    for model in MODELS:
        for task in TASKS:
            for seed in range(trainings):
                training = cell(
                    "train", mode="train", model=model, task=task, length=512, seed=seed
                )
                store.write(training, trained(generator, steps), [], {"torch": "2"})
                store.record_in_sweep("trainings", training.key)
        for length in LENGTHS:
            for mode in ("forward", "step"):
                for seed in range(timings):
                    timing = cell(
                        "scaling", mode=mode, model=model, task="listops", length=length, seed=seed
                    )
                    store.write(timing, measured(generator, length), [], {"torch": "2"})


def summed(function: Callable[..., Any], into: dict[str, float]) -> Callable[..., Any]:
    """Return a function that adds how long its calls took."""

    @wraps(function)
    def counted(*arguments: Any, **options: Any) -> Any:
        wall, work = time.perf_counter(), processor_seconds()
        try:
            return function(*arguments, **options)
        finally:
            into["wall_s"] = into.get("wall_s", 0.0) + time.perf_counter() - wall
            into["processor_s"] = into.get("processor_s", 0.0) + processor_seconds() - work

    return counted


def reported(rows: Rows, root: Path) -> None:
    """Time the report of a store by its parts."""
    with timed(rows, "report: rows, descriptions, names"):
        frame, cells, _ = stored(root, None)
    with timed(rows, "report: configurations and commands of the cells"):
        accounts = stored_accounts(root, frame, cells)
    page: dict[str, float] = {}
    saving: dict[str, float] = {}
    with (
        mock.patch.object(report, "write_documents", summed(report.write_documents, page)),
        mock.patch.object(Figure, "savefig", summed(Figure.savefig, saving)),
        timed(rows, "report: tables, figures, both documents"),
    ):
        paths = report.write_report(
            frame, root / "report", title="Benchmark", sections=sections(), groups=kinds(),
            cells=accounts,
        )  # fmt: skip
    size = (root / "report" / "report.html").stat().st_size
    rows[-1] |= {"files": len(paths), "page_bytes": size, "rows": len(frame)}
    print(f"{len(frame):,} rows, {len(paths)} files; report.html has {size / 1e6:.2f} MB")
    for what, part in (("of it, both documents", page), ("of it, saving figures", saving)):
        print(f"{what:<58}{part['wall_s']:8.2f} s wall {part['processor_s']:8.2f} s processor")
        rows.append({"what": what, **part})


def store(root: Path, options: Namespace) -> Rows:
    """Read, report and audit a large store, and read cells of one kind."""
    rows: Rows = []
    share = options.scale
    steps, timings = max(2, round(95 * share)), max(1, round(12 * share))
    for what, numbers in (
        ("trainings and timings", (5, steps, timings)),
        ("timings", (0, 0, max(1, round(25 * share)))),
        ("trainings", (max(1, round(20 * share)), 45, 0)),
    ):
        folder = root / what.replace(" ", "_")
        with timed(rows, f"making {what}, without waiting for the disk"):
            fill(Store(folder), *numbers)
        cells = len([*folder.glob("cells/*/*")])
        for name, read in (("read_rows", read_rows), ("stored", partial(stored, sweep=None))):
            with timed(rows, f"{name}, {what}", cells):
                read(folder)
    large = root / "trainings_and_timings"
    reported(rows, large)
    with timed(rows, "lra doctor --store"):
        audit(large)
    return rows


def lra(*words: str) -> None:
    """Run `lra run -m` in a process of its own."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    ended = subprocess.run(
        [sys.executable, "-m", "lra", "run", "-m", *words],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ended.returncode:
        raise SystemExit(ended.stderr)


def complete(words: Sequence[str]) -> None:
    """Store ten rows of every cell of a sweep."""
    sweep = build(entries(["-m", *words]))
    curve = [Measurement(metric="train_loss", value=1.0 + n, step=n) for n in range(1, 10)]
    score = Measurement(metric="accuracy", value=0.5, labels={"split": "test", "examples": "10"})
    for planned in sweep.planned:
        sweep.store.write(planned.cell, [*curve, score], [], {"took_s": 1.0})
        sweep.store.record_in_sweep(sweep.name, planned.cell.key)


def sweep(root: Path, options: Namespace) -> Rows:
    """Plan a large sweep before and behind its cells, and read it."""
    rows: Rows = []
    cells = options.cells
    words = [
        "model=linear,sdpa", "task=listops", f"seed=range(0,{max(1, cells // 10)})",
        "optim.peak_learning_rate=1e-4,3e-4,1e-3,3e-3,1e-2", "optim.steps=10", "sweep=scale",
        f"results={root}", *QUIET,
    ]  # fmt: skip
    with timed(rows, "dry run, nothing is stored", cells):
        lra(*words, "runner.dry_run=true")
    complete(words)
    for which in ("first", "again"):
        with timed(rows, f"dry run, all complete, {which}", cells):
            lra(*words, "runner.dry_run=true")
        with timed(rows, f"resume, all complete, {which}", cells):
            lra(*words)
    with timed(rows, "which cells are complete, by the index", cells):
        assert len(statuses(root)) == cells
    with timed(rows, "read_rows", cells):
        read_rows(root)
    reported(rows, root)
    return rows


def tiny(root: Path, options: Namespace) -> Rows:
    """Measure what one more tiny cell costs a sweep, and what of it is the cell's own work."""
    rows: Rows = []
    words = [*TINY, f"results={root}", "sweep=tiny", *QUIET]
    lra(*words, "seed=0,1")  # which makes the data
    with timed(rows, "sweep of two tiny cells", 2):
        lra(*words, "seed=2,3")
    with timed(rows, "sweep of tiny cells", options.tiny):
        lra(*words, f"seed=range(4,{4 + options.tiny})")
    more = (rows[-1]["wall_s"] - rows[-2]["wall_s"]) / (options.tiny - 2)
    planned = build(entries(["-m", *words, "seed=0"])).planned[0]
    columns, config = planned.cell.columns, planned.cell.config
    argument = {
        **{name: columns[name] for name in ("runner", "mode", "length")},
        "config": config, "trainings": {}, "stored": None, "checkpoints": str(root / "own"),
    }  # fmt: skip
    own = statistics.median(
        interleaved({"cell": lambda: run_cell(argument, lambda _: None)}, 11)["cell"]
    )
    lanes = planned.run.hardware.side_by_side()
    beyond = more - own / lanes
    print(
        f"one more tiny cell {more:.3f} s of wall clock; its own work {own:.3f} s, {lanes} side by "
        f"side; the harness {beyond:.3f} s a cell"
    )
    facts = {"more_s": more, "own_s": own, "lanes": lanes, "beyond_s": beyond}
    return [*rows, {"what": "harness", **facts}]


def start(root: Path, options: Namespace) -> Rows:
    """Measure fresh processes; the first round makes the data and warms the disk."""
    environment = {**os.environ, "LRA_DATA": str(root / "data")}
    run = [
        "-m", "lra", "run", "model=linear", "size=tiny", "task.train_examples=1000",
        "optim.steps=1", "optim.warmup_steps=0", "runner.evaluate_splits=[]", "logger=none",
    ]  # fmt: skip
    numbers = iter(range(10**6))

    def process(*words: str) -> None:
        own = [f"results={root / str(next(numbers))}"] if "run" in words else []
        command = [sys.executable, *words, *own]
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)

    samples = interleaved(
        {
            "lra list": partial(process, "-m", "lra", "list"),
            "lra --help": partial(process, "-m", "lra", "--help"),
            "imports": partial(process, "-c", "import torch, hydra, pandas"),
            "lra run": partial(process, *run),
        },
        options.rounds,
    )
    pairs = zip(samples["lra run"], samples["imports"], strict=True)
    samples["lra run, imports off"] = [whole - imports for whole, imports in pairs]
    for name, seconds in samples.items():
        middle = statistics.median(seconds)
        print(f"{name:<24}{middle:6.2f} s  ({min(seconds):.2f} to {max(seconds):.2f})")
    return [{"what": name, "seconds": seconds} for name, seconds in samples.items()]


PARTS: dict[str, Callable[[Path, Namespace], Rows]] = {
    each.__name__: each for each in (store, sweep, tiny, start)
}


def main() -> None:
    """Measure one part."""
    parser = command_line(__doc__, [*PARTS])
    parser.add_argument("--scale", type=float, default=1.0, help="of store; 1 = 100,000 rows")
    parser.add_argument("--cells", type=int, default=10_000, help="of sweep")
    parser.add_argument("--tiny", type=int, default=100, help="cells that are run")
    parser.add_argument("--rounds", type=int, default=5, help="of start")
    options = parser.parse_args()
    say_machine()
    # the disk is not what is measured, and 20,000 files would wait for it for minutes
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(atomic.os, "fsync"):
        append(options.json, PARTS[options.part](Path(folder), options))


if __name__ == "__main__":
    main()
