"""How fast data are made and fed: `python tests/benchmarks/data.py --json rows.jsonl`.

Prints wall seconds and processor seconds (of all processes): on a shared machine only the second
says what the work costs. Writes into a temporary folder and removes it.
"""

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

Rows = list[dict[str, Any]]

STEP_S = 0.020
"""A short training step, against which waiting for a batch is put."""


def processor_seconds() -> float:
    """Return the processor time of this process and of its ended children."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


@contextmanager
def timed(rows: Rows, what: str) -> Iterator[None]:
    """Print how long the block took, and add a row."""
    wall, work = time.perf_counter(), processor_seconds()
    yield
    wall, work = time.perf_counter() - wall, processor_seconds() - work
    print(f"{what:<58}{wall:8.2f} s wall {work:8.2f} s processor", flush=True)
    rows.append({"what": what, "wall_s": wall, "processor_s": work})


def median(function: Callable[[], object], repeats: int = 9) -> float:
    """Return the median seconds of a call."""
    samples = []
    for _ in range(repeats):
        began = time.perf_counter()
        function()
        samples.append(time.perf_counter() - began)
    return statistics.median(samples)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trees", type=int, default=100_000, help="training trees of ListOps")
    parser.add_argument("--json", type=Path, help="append rows, one JSON object a line")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LRA_DATA"] = folder
        rows = run(arguments.trees)
    if arguments.json:
        with arguments.json.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


def run(trees: int) -> Rows:
    """Measure, print, and return what was printed."""
    rows: Rows = []
    from tasks.classification.listops.task import ListOps
    from tasks.classification.text import Text, TextSource
    from tasks.data.batching import collate
    from tasks.data.storage import from_rows

    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
    sizes = {"train_examples": trees - 4000, "validation_examples": 2000, "test_examples": 2000}
    listops = ListOps(**sizes)
    with timed(rows, f"{trees:,} official trees, encoded"):
        listops.prepare()
    with timed(rows, "the official TSV of the same trees"):
        ListOps(write_tsv=True, **sizes).prepare()
    with timed(rows, "opening the prepared task"):
        ListOps(**sizes).prepare()
    with timed(rows, "quickstart trees (40,000; 50 < length < 150)"):
        quick = ListOps(min_length=50, max_length=150, max_depth=4, train_examples=36_000)
        quick.prepare()

    rows += stored_pictures()
    rows += pathfinder()

    text = np.random.PCG64(0).random_raw(8_000_000).view(np.uint8)
    offsets = np.arange(0, len(text), 2000)
    split = from_rows([text[i : i + 2000] for i in offsets], np.zeros(len(offsets), np.uint8))
    plan_rows = np.arange(len(offsets)).reshape(-1, 32)

    def tokenise() -> None:
        for row in plan_rows:
            collate(split, row, max_length=2000, shift=1)

    seconds = median(tokenise)
    rate = plan_rows.size * 2000 / seconds
    print(f"byte tokenisation, 32 x 2,000 bytes to ids: {rate / 1e6:,.0f} MB/s")
    rows.append({"what": "byte tokenisation, 32 x 2,000", "bytes_per_second": rate})
    sample = Text(source=TextSource.sample)
    sample.prepare()
    fed = {"listops quickstart": quick, "listops official": listops, "text sample": sample}
    for name, task in fed.items():
        plan = list(task.batches("train", batch_size=32, seed=0))[:200]
        batches = task.batches("train", batch_size=32, seed=1)
        began = time.perf_counter()
        next(batches)
        first = time.perf_counter() - began
        waits = []
        for _ in range(min(len(plan), 200) - 1):
            began = time.perf_counter()
            next(batches)
            waits.append(time.perf_counter() - began)
        wait = statistics.median(waits)
        print(
            f"{name}, batch 32: {1 / wait:8,.0f} batches/s, {wait / STEP_S:.2%} of a "
            f"{STEP_S * 1e3:.0f} ms step; first batch after {first * 1e3:.0f} ms"
        )
        rows.append({"what": f"{name}, batch 32", "first_batch_s": first, "batch_s": waits})
    return rows


def own_memory() -> int:
    """Return the resident bytes that no file backs."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def stored_pictures() -> Rows:
    """Feed epochs of 50,000 pictures of 1,024 bytes from a memory-mapped store."""
    from tasks.classification.pathfinder.task import Pathfinder
    from tasks.data.storage import Ragged, write_store

    sizes = {"train_examples": 50_000, "validation_examples": 1000, "test_examples": 1000}
    task = Pathfinder(**sizes)

    def noise(number: int) -> Ragged:
        pixels = np.random.PCG64(number).random_raw(number * 128).view(np.uint8)
        offsets = np.arange(number + 1, dtype=np.int64) * 1024
        return Ragged(pixels, offsets, np.zeros(number, np.uint8))

    splits = {name.split("_")[0]: noise(number) for name, number in sizes.items()}
    write_store(task.folder, splits, {"data_hash": task.spec.data_hash})
    began = time.perf_counter()
    task.prepare()
    opened = time.perf_counter() - began
    rates, memory = [], []
    for seed in range(6):
        began, number = time.perf_counter(), 0
        for batch in task.batches("train", batch_size=32, seed=seed):
            number += len(batch.tokens)
        rates.append(number / (time.perf_counter() - began))
        memory.append(own_memory())
    growth = (memory[-1] - memory[0]) / 2**20
    print(
        f"batches of 32 x 1,024 from a memory-mapped store: {statistics.median(rates):,.0f} "
        f"sequences/s; opened in {opened * 1e3:.0f} ms; {growth:+.1f} MiB of memory over 5 epochs"
    )
    return [
        {
            "what": "32 x 1,024 from a memory-mapped store",
            "sequences_per_second": rates,
            "open_s": opened,
            "own_memory_bytes": memory,
        }
    ]


def pathfinder() -> Rows:
    """Draw path-checked pictures of every side in one process, both drawings in turns."""
    from tasks.classification.pathfinder.styles import STYLES
    from tasks.classification.pathfinder.task import Drawing, draw

    rows = []
    for side, style in STYLES.items():
        number = 500 if side == 32 else 100
        seconds = dict.fromkeys(Drawing, 0.0)
        for index in range(-1, number):
            for drawing in Drawing:
                began = time.process_time()
                draw(drawing, style, int(index < 0), max(index, 0))
                seconds[drawing] += (time.process_time() - began) / number if index >= 0 else 0
        for drawing, each in seconds.items():
            what = f"Pathfinder, side {side}, {drawing}"
            print(f"{what}: {each * 1e3:.1f} ms a picture of one core")
            rows.append({"what": what, "processor_s": each})
    return rows


if __name__ == "__main__":
    main()
