"""A task in memory and a small model: seconds matter in tests of the loop."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lra.models.backbone.model import Backbone, BackboneConfig, Head, Pooling, TaskFacts
from lra.models.families.linear import LinearAttention
from lra.models.families.performer import Performer
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.measures.train import train
from lra.runners.training.checkpoint import Checkpoints
from lra.runners.training.config import TrainConfig
from lra.runners.training.loop import Item, Trainer
from lra.runners.training.optim import OptimConfig
from lra.tasks.task import Baseline, Batch, Kind, Tally, Task, TaskSpec

CPU = HardwareProfile(name="cpu")
OPTIM = OptimConfig(steps=12, batch_size=8, peak_learning_rate=1e-2)

SPEC = TaskSpec(
    name="tiny",
    version=1,
    kind=Kind.classification,
    vocabulary=8,
    classes=3,
    max_length=12,
    padded=True,
    metric="accuracy",
    source="made in a test",
    data_hash="0",
    sizes={"train": 40, "validation": 9, "test": 10},
)

TIMES = {"train_step_time", "train_time", "data_wait", "waiting_share", "process_peak_bytes"}
"""Of a training: no two have the same."""


def same(one: nn.Module, other: nn.Module) -> bool:
    """Return whether two models have the same weights and buffers to the bit."""
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


class Tiny:
    """The class is the first token modulo 3."""

    spec = SPEC

    def __init__(self, train: int = 40) -> None:
        self.sizes = {**SPEC.sizes, "train": train}

    def prepare(self) -> None: ...

    def data(self, split: str) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(sorted(self.sizes).index(split))
        n = self.sizes[split]
        tokens = torch.randint(1, 8, (n, 1, 12), generator=generator)
        keep = torch.arange(12) < torch.randint(3, 13, (n, 1, 1), generator=generator)
        return tokens * keep, tokens[:, 0, 0] % 3, keep

    def batches(
        self,
        split: str,
        *,
        batch_size: int,
        seed: int,
        rank: int = 0,
        ranks: int = 1,
        start: int = 0,
    ) -> Iterator[Batch]:
        tokens, target, keep = self.data(split)
        order = torch.arange(len(target))
        if split == "train":
            order = torch.randperm(len(target), generator=torch.Generator().manual_seed(seed))
            order = order[: len(order) // batch_size * batch_size]
        for rows in order.split(batch_size)[start:]:
            if len(rows):
                yield Batch(tokens[rows], target[rows], rows, keep[rows])

    def tally(self, nll: Tensor, hit: Tensor, batch: Batch) -> Tally:
        return Tally(float(nll.sum()), float(hit.sum()), len(hit), batch.index, nll, hit)

    def baselines(self, split: str) -> list[Baseline]:
        _, target, _ = self.data(split)
        return [Baseline("majority", float((target == 1).float().mean()), target == 1, "guesses 1")]


def model(
    *,
    dropout: float = 0.0,
    redraw_every: int = 0,
    seed: int = 0,
    pooling: Pooling = Pooling.cls,
) -> Backbone:
    """A Performer with redraws where asked, else linear attention."""
    config = BackboneConfig(
        depth=1, width=8, heads=2, feed_forward_width=8, dropout=dropout, pooling=pooling
    )
    mixer = (
        partial(Performer, features=4, redraw_every=redraw_every)
        if redraw_every
        else LinearAttention
    )
    facts = TaskFacts(head=Head.classification, vocabulary=8, classes=3, max_length=12)
    return Backbone(config, facts, [mixer], seed=seed)


def training(
    net: nn.Module,
    task: Task | None = None,
    folder: Path | None = None,
    *,
    optim: OptimConfig = OPTIM,
    hardware: HardwareProfile = CPU,
    earlier: Path | None = None,
    stop_at: dict[str, float] | None = None,
    **config: Any,
) -> Iterator[Item]:
    """Train with seed 3, on `Tiny` where no task is given; `config`: of `TrainConfig`."""
    return train(
        net, task or Tiny(), optim=optim, config=TrainConfig(**{"log_every_steps": 3} | config),
        hardware=hardware, seed=3, checkpoints=folder, earlier=earlier, stop_at=stop_at,
    )  # fmt: skip


def trainer_of(
    net: nn.Module,
    task: Task | None = None,
    folder: Path | None = None,
    *,
    optim: OptimConfig = OPTIM,
    **config: Any,
) -> Trainer:
    """Return what drives such a training, with seed 0."""
    return Trainer(
        net, task or Tiny(), optim=optim, config=TrainConfig(**config), hardware=CPU, seed=0,
        checkpoints=Checkpoints(folder),
    )  # fmt: skip
