"""What it costs a training that a dashboard shows it while it runs.

    python tests/benchmarks/live_logging.py --json rows.jsonl     # --blocks 100 on a busy machine

Three equal trainings take turns, a block of steps each, in an order that rotates: one whose numbers
go to an offline run of W&B, written by the process that a sweep starts for it; one to which nobody
listens; and a second of these. Printed are medians over blocks of paired ratios with their 20th to
80th percentile: watched over unwatched, and unwatched against itself, which is what the machine's
noise looks like; by the clock, which has what the writing process takes of the machine, and by the
processor time of the training's process alone.

The same follows by the clock from four numbers that are printed, too: lines of numbers, messages,
processor seconds of the writing processes, and seconds of training. The bound is 1 % of a step.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from lra.composition.hydra_entry import entries
from lra.sweep import cell_list
from lra.sweep.live import LiveSweep
from runners.isolation.progress import Begun, listening
from runners.records import Measurement
from tasks.classification.listops.task import ListOps
from tests.benchmarks.overhead import BATCH_SIZE, Spent, build, by_runner, spread

SIDES = ("watched", "unwatched", "unwatched again")


def not_told(row: Measurement) -> None:
    """Do nothing with a row: nobody listens."""


def processor_s(group: int) -> float:
    """Return the processor seconds of every process of a group that still runs."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(folder: Path, task: ListOps, width: int, blocks: int, block: int) -> dict[str, Any]:
    """Run the three sides in turns, print the ratios, and return every sample."""
    words = ("model=linear", "task=listops", "task.source=sample", f"results={folder}")
    sweep = cell_list.build(entries(words))
    cell = sweep.planned[0].cell
    live = LiveSweep(sweep, sweep.cells)
    messages = 0

    def tell(message: object) -> None:
        nonlocal messages
        messages += 1
        live.message(cell, message)

    tell(Begun(process=os.getpid()))
    steps = block * blocks
    samples: dict[str, list[Spent]] = {name: [] for name in SIDES}
    sides = {
        name: by_runner(
            build(task, width), task, steps, block, tell if name == "watched" else not_told
        )
        for name in SIDES
    }
    runs = live.runs
    if runs is None:
        raise RuntimeError("the sweep has no dashboard")
    runs.wait_until_ready(60)
    wrote = processor_s(runs.process_group)
    for number in range(blocks):
        turn = number % len(SIDES)
        for name in (*SIDES[turn:], *SIDES[:turn]):
            with listening(tell, log=None) if name == "watched" else nullcontext():
                samples[name].append(next(sides[name]))
    wrote = processor_s(runs.process_group) - wrote
    live.left(cell, "measured")
    live.close()

    calm = slice(1, None)  # the first block warms up
    bare = samples["unwatched"][calm]
    seconds = statistics.median(spent.clock for spent in bare)
    trained = sum(spent.clock for spent in samples["watched"])
    print(f"width {width}, batch {BATCH_SIZE}: a step takes {1e3 * seconds / block:.1f} ms; "
          f"{len(bare)} blocks of {block} steps")  # fmt: skip
    for name in ("watched", "unwatched again"):
        for index, kind in enumerate(Spent._fields):
            ratios = [a[index] / b[index] for a, b in zip(samples[name][calm], bare, strict=True)]
            print(f"  {name + ' over unwatched, ' + kind:<42}{spread(ratios)}")
    print(
        f"  {messages} messages; the writing processes took {wrote:.2f} s of a processor, at lower "
        f"priority, in {trained:.1f} s of watched training"
    )
    return {
        "width": width,
        "batch_size": BATCH_SIZE,
        "steps_per_block": block,
        "torch": torch.__version__,
        "messages": messages,
        "dropped": live.dropped,
        "writing_processor_s": wrote,
        "seconds": {name: [spent._asdict() for spent in found] for name, found in samples.items()},
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=40, help="blocks of steps for each side")
    parser.add_argument("--block", type=int, default=50, help="steps in a block")
    parser.add_argument("--widths", type=int, nargs="+", default=[64])
    parser.add_argument("--json", type=Path, help="append rows, one JSON object a line")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict("os.environ", LRA_DATA=folder):
        task = ListOps(min_length=50, max_length=150, max_depth=4, train_examples=20_000)
        task.prepare()
        for width in arguments.widths:
            results = Path(folder) / f"results-{width}"
            row = measure(results, task, width, arguments.blocks, arguments.block)
            if arguments.json:
                with arguments.json.open("a") as file:
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
