"""What the training loop costs beside a loop written by hand, and what a dashboard adds to it.

    python tests/benchmarks/training.py PART --json ROWS    # --blocks 100 if busy

- `loop`: `lra.runners.measures.train` beside a bare loop (forward, backward, clipping, AdamW).
- `processes`: the same on two processes that exchange gradients by gloo, beside a loop around
  PyTorch's DistributedDataParallel with its own averaging of gradients. The runner makes whole
  batches and takes its rows, adds gradients up, allows for weights that a pass leaves out, adds up
  the loss, and agrees with the other process on when to stop.
- `dashboard`: a training whose numbers go to an offline run of W&B, written by a thread of its
  process as that of a cell is, beside one to which nobody listens.

Three runs of one model on the same ListOps batches take turns, a block of steps each, in an order
that rotates: the side that is measured, the bare one, and the bare one again. Printed are medians
over blocks of paired ratios with their 20th to 80th percentile: the measured side over the bare
one, and the bare one over itself, which is what the machine's noise looks like; once by the clock
and once by the processor time of the process, which other work on the machine moves less.

Bare loops get batches that were collated beforehand; the runner reads its own, in the background.
In the end the weights are compared: equal, or the ratio would compare two trainings.
"""

import os
import socket
import statistics
import sys
import tempfile
import time
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from lra.composition.hydra_entry import entries
from lra.models.backbone.model import Backbone, BackboneConfig, Head, TaskFacts
from lra.models.families.linear import LinearAttention
from lra.runners.isolation.progress import listening
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.measures.train import train
from lra.runners.records import Measurement
from lra.runners.training.config import TrainConfig
from lra.runners.training.optim import OptimConfig, Schedule
from lra.runners.training.parallel.ranks import Ranks
from lra.runners.training.prefetch import BatchPosition, endless
from lra.sweep import cell_list
from lra.sweep.cell_logger import logging_cell
from lra.sweep.sweep_logger import SweepLogger
from lra.tasks.classification.listops.task import ListOps
from lra.tasks.task import Batch
from tests.benchmarks.frame import append, command_line

SEED, BATCH_SIZE, RATE, CLIP, PROCESSES = 0, 32, 1e-3, 1.0, 2


class Spent(NamedTuple):
    """Seconds of one block of steps."""

    clock: float
    processor: float


Side = Iterator[Spent]


def now() -> Spent:
    """Return both times."""
    return Spent(time.perf_counter(), time.process_time())


def since(begun: Spent) -> Spent:
    """Return what passed since `begun`."""
    return Spent(*(end - start for end, start in zip(now(), begun, strict=True)))


def build(task: ListOps, width: int) -> Backbone:
    """Return the model that every side trains, always with the same weights."""
    facts = TaskFacts(
        head=Head.classification, vocabulary=task.spec.vocabulary, classes=task.spec.classes,
        max_length=task.spec.max_length,
    )  # fmt: skip
    config = BackboneConfig(depth=2, width=width, heads=2, feed_forward_width=2 * width)
    return Backbone(config, facts, [LinearAttention], seed=SEED)


class Loss(nn.Module):
    """The mean loss of some rows."""

    def __init__(self, model: Backbone) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> Tensor:
        """Return it."""
        return self.model(batch.tokens, batch.target, batch.keep).nll.mean()


def by_hand(model: Backbone, batches: list[Batch], block: int, *, replicas: bool = False) -> Side:
    """Train; yield what each block of steps took."""
    loss = DistributedDataParallel(Loss(model)) if replicas else Loss(model)
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=RATE, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0, fused=True
    )
    model.train()
    for first in range(0, len(batches), block):
        begun = now()
        for batch in batches[first : first + block]:
            torch.autograd.backward(loss(batch))
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimiser.step()
            optimiser.zero_grad()
        yield since(begun)


def by_runner(
    model: Backbone,
    task: ListOps,
    steps: int,
    block: int,
    tell: Callable[[Measurement], object] = lambda _: None,
    *,
    processes: int = 1,
) -> Side:
    """Train through the runner; yield what passed between its rows, one a block; tell of each."""
    stream = train(
        model,
        task,
        optim=OptimConfig(
            peak_learning_rate=RATE, schedule=Schedule.constant, clip=CLIP, steps=steps,
            batch_size=BATCH_SIZE,
        ),
        config=TrainConfig(log_every_steps=block, evaluate_splits=[]),
        hardware=HardwareProfile(name="cpu", processes=processes),
        seed=SEED,
        checkpoints=None,
    )  # fmt: skip
    begun = now()
    for item in stream:
        if isinstance(item, Measurement):
            tell(item)
            if item.metric == "train_loss":
                yield since(begun)
                begun = now()


def in_turns(
    sides: Mapping[str, Side],
    blocks: int,
    around: Callable[[str], AbstractContextManager[object]] = lambda _: nullcontext(),
) -> dict[str, list[Spent]]:
    """Return what every block of every side took, in an order that rotates."""
    samples: dict[str, list[Spent]] = {name: [] for name in sides}
    names = list(sides)
    for number in range(blocks):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            with around(name):
                samples[name].append(next(sides[name]))
    for side in sides.values():  # the runner has its last rows to yield
        next(side, None)
    return samples


def spread(values: list[float]) -> str:
    """Return median and 20th to 80th percentile of ratios, as a difference from 1 in percent."""
    low, *_, high = statistics.quantiles(values, n=5, method="inclusive")
    middle = statistics.median(values)
    return "{:+.2f} % ({:+.2f} to {:+.2f})".format(*(100 * (x - 1) for x in (middle, low, high)))


def conclude(samples: dict[str, list[Spent]], options: Namespace, width: int) -> dict[str, Any]:
    """Print ratios over the second side, and return every sample."""
    measured, bare, again = samples
    calm = samples[bare][1:]  # the first block warms up
    step = statistics.median(spent.clock for spent in calm) / options.block
    print(
        f"width {width}, batch {BATCH_SIZE}: a bare step takes {1e3 * step:.1f} ms; "
        f"{len(calm)} blocks of {options.block} steps"
    )
    for name in (measured, again):
        for index, kind in enumerate(Spent._fields):
            pairs = zip(samples[name][1:], calm, strict=True)
            text = spread([a[index] / b[index] for a, b in pairs])
            print(f"  {f'{name} over {bare}, {kind}':<42}{text}")
    return {
        "width": width, "batch_size": BATCH_SIZE, "steps_per_block": options.block,
        "torch": torch.__version__,
        "seconds": {name: [each._asdict() for each in block] for name, block in samples.items()},
    }  # fmt: skip


def weights_apart(models: dict[str, Backbone]) -> float:
    """Return by how much the weights of some model differ at most from those of the first."""
    first, *others = (model.state_dict() for model in models.values())
    return max(float((v - other[k]).abs().max()) for other in others for k, v in first.items())


def loop(
    task: ListOps, width: int, options: Namespace, *, ranks: Ranks | None = None
) -> dict[str, Any]:
    """Measure the runner against a loop by hand, in this process or on a rank of several."""
    steps = options.blocks * options.block
    source = endless(task, BATCH_SIZE, SEED, BatchPosition(0, 0))
    batches = [next(source)[1] for _ in range(steps)]
    if ranks:
        batches = [ranks.part_of(batch) for batch in batches]
    models = {name: build(task, width) for name in ("runner", "loop", "loop again")}
    rows: list[Measurement] = []
    runner = partial(by_runner, processes=PROCESSES if ranks else 1)
    hand = partial(by_hand, replicas=ranks is not None)
    sides = {
        "runner": runner(models["runner"], task, steps, options.block, rows.append),
        "loop": hand(models["loop"], batches, options.block),
        "loop again": hand(models["loop again"], batches, options.block),
    }

    def together(_: str) -> AbstractContextManager[object]:
        if ranks:
            dist.barrier()
        return nullcontext()

    samples, far = in_turns(sides, options.blocks, together), weights_apart(models)
    if ranks and ranks.rank:
        return {}
    row = conclude(samples, options, width)
    print(f"  weights at the end differ by at most {far:.1e}")
    row |= {"weights_differ_by": far, "processes": PROCESSES if ranks else 1}
    if not ranks:
        row["data_wait"] = next(each.value for each in rows if each.metric == "data_wait")
        print(f"  waiting for batches: {row['data_wait']:.3%} of the runner's training time")
    return row


def on_rank(rank: int, port: int, task: ListOps, options: Namespace) -> None:
    """Measure in one process."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": PROCESSES, "MASTER_PORT": port}
    os.environ |= {"MASTER_ADDR": "127.0.0.1"} | {name: str(n) for name, n in place.items()}
    dist.init_process_group("gloo")
    for width in options.widths:
        row = loop(task, width, options, ranks=Ranks(rank, PROCESSES))
        append(options.json, [row] if row else [])
    dist.destroy_process_group()


def dashboard(folder: Path, task: ListOps, width: int, options: Namespace) -> dict[str, Any]:
    """Measure a watched training against unwatched ones."""
    words = ("model=linear", "task=listops", "task.source=sample", f"results={folder}")
    sweep = cell_list.build(entries((*words, "logger=wandb_offline")))
    logged = SweepLogger(sweep).of_cell(sweep.planned[0].cell, lambda _: False)
    messages: list[object] = []
    steps = options.blocks * options.block
    names = ("watched", "unwatched", "unwatched again")
    with logging_cell(logged, messages.append) as tell:
        sides = {
            name: by_runner(build(task, width), task, steps, options.block,
                            *([tell] if name == "watched" else []))
            for name in names
        }  # fmt: skip
        tell("begun")
        while not [*folder.glob("wandb/*/run-*")]:  # until its file is there
            time.sleep(0.1)
        samples = in_turns(
            sides,
            options.blocks,
            lambda name: listening(tell, log=None) if name == "watched" else nullcontext(),
        )
    return conclude(samples, options, width) | {"messages": len(messages)}


def main() -> None:
    """Measure one part."""
    parser = command_line(__doc__, ("loop", "processes", "dashboard"))
    parser.add_argument("--blocks", type=int, default=40, help="blocks of steps for each side")
    parser.add_argument("--block", type=int, default=10, help="steps in a block; 50 of a dashboard")
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128])
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict("os.environ", LRA_DATA=folder):
        task = ListOps(min_length=50, max_length=150, max_depth=4, train_examples=20_000)
        task.prepare()
        if options.part == "processes":
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            torch.multiprocessing.start_processes(
                on_rank, args=(port, task, options), nprocs=PROCESSES, start_method="fork"
            )
            return
        for width in options.widths:
            if options.part == "loop":
                row = loop(task, width, options)
            else:
                row = dashboard(Path(folder) / f"results-{width}", task, width, options)
            append(options.json, [row])


if __name__ == "__main__":
    main()
