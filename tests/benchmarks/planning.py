"""What planning a sweep costs: `python tests/benchmarks/planning.py --json rows.jsonl`.

A dry run of 20 models x 5 tasks x 100 seeds, 10,000 cells, in a fresh process, and of one cell:
the difference in processor time is what planning costs, without the start and its imports. Beside
it a sweep in which every cell is another choice of files: the dearest case. Nothing is built,
trained or written.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

MODELS = (
    "softmax,sdpa,linear,performer,fnet,local,luna,cosformer,linformer,reformer,yoso,longformer,"
    "big_bird,sinkhorn,skyformer,nystromformer,kernelised,h_transformer,synthesizer,identity"
)
TASKS = "listops,text,image,pathfinder,enwik8"
SIZES = "tiny,small,base,large"


class Side(NamedTuple):
    """A command line and the cells that it plans."""

    words: tuple[str, ...]
    cells: int


SIDES = {
    "one cell": Side((), 1),
    "seeds": Side((f"model={MODELS}", f"task={TASKS}", "seed=range(0,100)"), 10_000),
    "files": Side((f"model={MODELS}", f"task={TASKS}", f"size={SIZES}"), 400),
}


def planned(side: Side, folder: str) -> tuple[float, float]:
    """Return seconds of wall clock and of processor time that a dry run takes."""
    words = ("task.source=sample", *side.words, "runner.dry_run=true", "logger=none")
    before, began = os.times(), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "lra", "run", "-m", *words, f"results={folder}"],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    took, after = time.perf_counter() - began, os.times()
    if f"{side.cells} cells in" not in done.stdout:
        raise SystemExit(f"wanted {side.cells} cells: got {done.stdout[-200:]}")
    spent = after.children_user + after.children_system
    return took, spent - before.children_user - before.children_system


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="append rows, one JSON object a line")
    arguments = parser.parse_args()
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in SIDES}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(arguments.rounds):  # in turns, so that the machine's moods hit all sides
            for name, side in SIDES.items():
                samples[name].append(planned(side, f"{folder}/none"))
    start = statistics.median(spent for _, spent in samples["one cell"])
    for name, found in samples.items():
        walls, spent = zip(*found, strict=True)
        wall, cells = statistics.median(walls), SIDES[name].cells
        each = (statistics.median(spent) - start) / cells * 1e3
        print(
            f"{name:<10}{cells:>7,} cells {wall:7.2f} s ({min(walls):.2f} to {max(walls):.2f}), "
            f"processor {statistics.median(spent):7.2f} s"
            + (f", {each:6.2f} ms of it a cell" if cells > 1 else "")
        )
        if arguments.json:
            row = {"what": name, "cells": cells, "seconds": walls, "processor_seconds": spent}
            with arguments.json.open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
