"""What the training loop costs on several processes beside a loop around DDP written by hand.

    python tests/benchmarks/data_parallel.py --json rows.jsonl     # --blocks 100 on a busy machine

As `overhead.py`, with the same model and batches, on two processes that exchange gradients by gloo.
By hand each process has its rows of every batch collated beforehand, and PyTorch's
DistributedDataParallel with its own averaging of gradients; the runner makes whole batches and
takes its rows, adds gradients up, allows for weights that a pass leaves out, adds up the loss, and
agrees with the other process on when to stop. In the end the weights are compared, to rounding.
"""

import argparse
import json
import os
import socket
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from models.backbone.model import Backbone
from runners.training.parallel.ranks import Ranks
from runners.training.prefetch import BatchPosition, endless
from tasks.classification.listops.task import ListOps
from tasks.task import Batch
from tests.benchmarks.overhead import (
    BATCH_SIZE,
    CLIP,
    RATE,
    SEED,
    Spent,
    build,
    by_runner,
    now,
    since,
    spread,
)

PROCESSES = 2


class Loss(nn.Module):
    """The mean loss of some rows."""

    def __init__(self, model: Backbone) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> Tensor:
        """Return it."""
        return self.model(batch.tokens, batch.target, batch.keep).nll.mean()


def by_hand(model: Backbone, batches: list[Batch], block: int) -> Iterator[Spent]:
    """Train; yield what each block of steps took."""
    replica = DistributedDataParallel(Loss(model))
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=RATE, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0, fused=True
    )
    model.train()
    for first in range(0, len(batches), block):
        begun = now()
        for batch in batches[first : first + block]:
            torch.autograd.backward(replica(batch))
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimiser.step()
            optimiser.zero_grad()
        yield since(begun)


def measure(task: ListOps, width: int, blocks: int, block: int) -> dict[str, Any]:
    """Run the three sides in turns, print the ratios, and return every sample."""
    rank, steps = dist.get_rank(), block * blocks
    source = endless(task, BATCH_SIZE, SEED, BatchPosition(0, 0))
    ranks = Ranks(rank, PROCESSES)
    own = [ranks.part_of(next(source)[1]) for _ in range(steps)]
    models = {name: build(task, width) for name in ("runner", "loop", "loop again")}
    runner = partial(by_runner, tell=lambda _: None, processes=PROCESSES)
    start: dict[str, Callable[[], Iterator[Spent]]] = {
        "runner": partial(runner, models["runner"], task, steps, block),
        "loop": partial(by_hand, models["loop"], own, block),
        "loop again": partial(by_hand, models["loop again"], own, block),
    }
    sides = {name: begin() for name, begin in start.items()}
    samples: dict[str, list[Spent]] = {name: [] for name in sides}
    names = list(sides)
    for number in range(blocks):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            dist.barrier()
            samples[name].append(next(sides[name]))
    for side in sides.values():
        next(side, None)
    first, *others = (model.state_dict() for model in models.values())
    far = max(float((v - other[k]).abs().max()) for other in others for k, v in first.items())
    loop = samples["loop"][1:]  # the first block warms up
    if rank == 0:
        step = statistics.median(spent.clock for spent in loop) / block
        print(
            f"width {width}, batch {BATCH_SIZE} on {PROCESSES} processes: a step by hand takes "
            f"{1e3 * step:.1f} ms; {len(loop)} blocks of {block} steps"
        )
        for name in ("runner", "loop again"):
            for index, kind in enumerate(Spent._fields):
                pairs = zip(samples[name][1:], loop, strict=True)
                ratios = spread([a[index] / b[index] for a, b in pairs])
                print(f"  {f'{name} over loop, {kind}':<32}{ratios}")
        print(f"  weights at the end differ by at most {far:.1e}")
    return {
        "width": width,
        "batch_size": BATCH_SIZE,
        "processes": PROCESSES,
        "steps_per_block": block,
        "torch": torch.__version__,
        "weights_differ_by": far,
        "seconds": {name: [spent._asdict() for spent in found] for name, found in samples.items()},
    }


def work(rank: int, port: int, task: ListOps, arguments: argparse.Namespace) -> None:
    """Measure in one process."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": PROCESSES, "MASTER_PORT": port}
    os.environ |= {"MASTER_ADDR": "127.0.0.1"} | {name: str(n) for name, n in place.items()}
    dist.init_process_group("gloo")
    for width in arguments.widths:
        row = measure(task, width, arguments.blocks, arguments.block)
        if arguments.json and rank == 0:
            with arguments.json.open("a") as file:
                file.write(json.dumps(row) + "\n")
    dist.destroy_process_group()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=40, help="blocks of steps for each side")
    parser.add_argument("--block", type=int, default=10, help="steps in a block")
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--json", type=Path, help="append rows, one JSON object a line")
    arguments = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict("os.environ", LRA_DATA=folder):
        task = ListOps(min_length=50, max_length=150, max_depth=4, train_examples=20_000)
        task.prepare()
        torch.multiprocessing.start_processes(
            work, args=(port, task, arguments), nprocs=PROCESSES, start_method="fork"
        )


if __name__ == "__main__":
    main()
