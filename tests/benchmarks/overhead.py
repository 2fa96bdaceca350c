"""What the training loop costs beside a loop written by hand.

    python tests/benchmarks/overhead.py --json rows.jsonl     # --blocks 100 on a busy machine

Three runs of one model on the same ListOps batches take turns, a block of steps each, in an order
that rotates: `runners.measures.train`, a bare loop (forward, backward, clipping, AdamW), and the
same bare loop again. Printed are medians over blocks of paired ratios with their 20th to 80th
percentile: the runner against the loop, and the loop against itself, which is what the machine's
noise looks like; once by the clock and once by the processor time of the process, which other work
on the machine moves less, and which counts the runner's thread that reads batches.

The bare loops get batches that were collated beforehand; the runner reads its own, in the
background, and the share of time that it waits for them is printed, too. In the end the weights
are compared: equal to the bit, or the ratio would compare two trainings.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from models.backbone.model import Backbone, BackboneConfig, Head, TaskFacts
from models.families.linear import LinearAttention
from runners.measurement.hardware import HardwareProfile
from runners.measures.train import train
from runners.records import Measurement
from runners.training.config import TrainConfig
from runners.training.optim import OptimConfig, Schedule
from runners.training.prefetch import BatchPosition, endless
from tasks.classification.listops.task import ListOps
from tasks.task import Batch

SEED = 0
BATCH_SIZE = 32
RATE = 1e-3
CLIP = 1.0


def build(task: ListOps, width: int) -> Backbone:
    """Return the model that every side trains, always with the same weights."""
    facts = TaskFacts(
        head=Head.classification,
        vocabulary=task.spec.vocabulary,
        classes=task.spec.classes,
        max_length=task.spec.max_length,
    )
    config = BackboneConfig(depth=2, width=width, heads=2, feed_forward_width=2 * width)
    return Backbone(config, facts, [LinearAttention], seed=SEED)


class Spent(NamedTuple):
    """Seconds of one block of steps."""

    clock: float
    processor: float


def now() -> Spent:
    """Return both times."""
    return Spent(time.perf_counter(), time.process_time())


def since(begun: Spent) -> Spent:
    """Return what passed since `begun`."""
    end = now()
    return Spent(end.clock - begun.clock, end.processor - begun.processor)


def by_hand(model: Backbone, batches: list[Batch], block: int) -> Iterator[Spent]:
    """Train; yield what each block of steps took."""
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=RATE, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0, fused=True
    )
    model.train()
    for first in range(0, len(batches), block):
        begun = now()
        for batch in batches[first : first + block]:
            outcome = model(batch.tokens, batch.target, batch.keep)
            loss = outcome.nll.mean()
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimiser.step()
            optimiser.zero_grad()
        yield since(begun)


def by_runner(
    model: Backbone,
    task: ListOps,
    steps: int,
    block: int,
    tell: Callable[[Measurement], None],
    *,
    processes: int = 1,
) -> Iterator[Spent]:
    """Train through the runner; yield what passed between its rows, one a block; tell of each."""
    stream = train(
        model,
        task,
        optim=OptimConfig(
            peak_learning_rate=RATE,
            schedule=Schedule.constant,
            clip=CLIP,
            steps=steps,
            batch_size=BATCH_SIZE,
        ),
        config=TrainConfig(log_every_steps=block, evaluate_splits=[]),
        hardware=HardwareProfile(name="cpu", processes=processes),
        seed=SEED,
        checkpoints=None,
    )
    begun = now()
    for item in stream:
        if isinstance(item, Measurement):
            tell(item)
            if item.metric == "train_loss":
                yield since(begun)
                begun = now()


def spread(values: list[float]) -> str:
    """Return median and 20th to 80th percentile of ratios, as a difference from 1 in percent."""
    cuts = statistics.quantiles(values, n=5, method="inclusive")
    low, high = cuts[0], cuts[-1]
    return (
        f"{100 * (statistics.median(values) - 1):+.2f} % "
        f"({100 * (low - 1):+.2f} to {100 * (high - 1):+.2f})"
    )


def measure(task: ListOps, width: int, blocks: int, block: int) -> dict[str, Any]:
    """Run the three sides in turns, print the ratios, and return every sample."""
    steps = block * blocks
    source = endless(task, BATCH_SIZE, SEED, BatchPosition(0, 0))
    batches = [next(source)[1] for _ in range(steps)]
    models = {name: build(task, width) for name in ("runner", "loop", "loop again")}
    rows: list[Measurement] = []
    start: dict[str, Callable[[], Iterator[Spent]]] = {
        "runner": partial(by_runner, models["runner"], task, steps, block, rows.append),
        "loop": partial(by_hand, models["loop"], batches, block),
        "loop again": partial(by_hand, models["loop again"], batches, block),
    }
    sides = {name: begin() for name, begin in start.items()}
    samples: dict[str, list[Spent]] = {name: [] for name in sides}
    names = list(sides)
    for number in range(blocks):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            samples[name].append(next(sides[name]))
    for side in sides.values():  # the runner has its last rows to yield
        next(side, None)
    waited = next(row.value for row in rows if row.metric == "data_wait")

    first, *others = (model.state_dict() for model in models.values())
    same = all(torch.equal(value, other[key]) for other in others for key, value in first.items())
    calm = slice(1, None)  # the first block warms up
    loop = samples["loop"][calm]
    length = statistics.median(batch.tokens.shape[-1] for batch in batches)
    seconds = statistics.median(spent.clock for spent in loop)
    print(
        f"width {width}, batch {BATCH_SIZE}, median length {length:.0f}: "
        f"a step by hand takes {1e3 * seconds / block:.1f} ms; {len(loop)} blocks of {block} steps"
    )
    for name in ("runner", "loop again"):
        for index, kind in enumerate(Spent._fields):
            ratios = [a[index] / b[index] for a, b in zip(samples[name][calm], loop, strict=True)]
            print(f"  {name + ' over loop, ' + kind:<32}{spread(ratios)}")
    print(f"  waiting for batches             {waited:.3%} of the runner's training time")
    print(f"  weights at the end              {'equal to the bit' if same else 'DIFFERENT'}")
    return {
        "width": width,
        "batch_size": BATCH_SIZE,
        "median_length": length,
        "steps_per_block": block,
        "torch": torch.__version__,
        "equal_weights": same,
        "data_wait": waited,
        "seconds": {name: [spent._asdict() for spent in found] for name, found in samples.items()},
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=40, help="blocks of steps for each side")
    parser.add_argument("--block", type=int, default=10, help="steps in a block")
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--json", type=Path, help="append rows, one JSON object a line")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict("os.environ", LRA_DATA=folder):
        task = ListOps(min_length=50, max_length=150, max_depth=4, train_examples=20_000)
        task.prepare()
        for width in arguments.widths:
            row = measure(task, width, arguments.blocks, arguments.block)
            if arguments.json:
                with arguments.json.open("a") as file:
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
