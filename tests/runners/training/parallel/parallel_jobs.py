"""Trainings in processes of their own, for tests of several ranks."""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from lra.models.backbone.model import (
    Backbone,
    BackboneConfig,
    Head,
    Residual,
    TaskFacts,
)
from lra.models.families.linear import LinearAttention
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import MixerFactory
from lra.models.positions import Positions
from lra.runners.isolation.child import Ending, Send
from lra.runners.isolation.isolate import run
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.measures.train import train
from lra.runners.records import Measurement, Outcomes
from lra.runners.training.config import Keep, TrainConfig
from lra.runners.training.loop import Trainer
from lra.runners.training.optim import OptimConfig
from lra.tasks.classification.objectives import (
    Hiding,
    InputObjective,
    MaskedReplacement,
    with_answers,
)
from lra.tasks.data.tokens import tally
from lra.tasks.language import characters
from lra.tasks.language.base import Regime
from lra.tasks.task import Batch, Kind, Tally, Task
from tests.runners.tiny_task import Tiny, model as classifier

LENGTH, MEMORY = 16, 24


class Weighted(Tiny):
    """Examples count differently: the weights of two ranks are unequal."""

    def batches(self, split: str, **options: Any) -> Iterator[Batch]:
        """Yield weighted batches."""
        for batch in super().batches(split, **options):
            yield batch._replace(weight=(batch.index % 5 + 1).double())


class Rare(Tiny):
    """Few examples count: often no example of a process does."""

    def batches(self, split: str, **options: Any) -> Iterator[Batch]:
        """Yield weighted batches."""
        for batch in super().batches(split, **options):
            yield batch._replace(weight=(batch.index % 4 == 0).double())


class RareTokens(Tiny):
    """A language task that asks one position of few rows; batches may ask nothing."""

    spec = replace(Tiny.spec, kind=Kind.language_modelling, vocabulary=27, classes=27, padded=False)

    def batches(self, split: str, **options: Any) -> Iterator[Batch]:
        """Yield weighted batches of tokens, each of which is its answer."""
        for batch in super().batches(split, **options):
            tokens, weight = batch.tokens[:, 0], torch.zeros(batch.tokens[:, 0].shape)
            weight[:, 5] = (batch.index % 4 == 0).float()
            yield batch._replace(target=tokens, keep=None, weight=weight.double())

    def tally(self, nll: Tensor, hit: Tensor, batch: Batch) -> Tally:
        """Sum over the tokens that count."""
        return tally(nll, hit, batch, {})


class Detecting(Tiny):
    """Tokens of which a generator replaces some: their numbers in two ranks are unequal."""

    spec = replace(Tiny.spec, kind=Kind.replaced_detection, vocabulary=9, classes=9)

    def batches(self, split: str, **options: Any) -> Iterator[Batch]:
        """Yield batches with masked tokens."""
        hiding = Hiding(0, 0.3, MaskedReplacement.mask, range(1, 8))
        for batch in super().batches(split, **options):
            yield with_answers(batch, InputObjective.replaced, hiding)

    def tally(self, nll: Tensor, hit: Tensor, batch: Batch) -> Tally:
        """Sum over the real tokens."""
        return tally(nll, hit, batch, {})


def detector() -> Backbone:
    """Return a model that finds replaced tokens."""
    config = BackboneConfig(width=8, heads=2, depth=2, feed_forward_width=16, generator_share=0.5)
    facts = TaskFacts(
        head=Head.replaced_detection, vocabulary=9, classes=9, max_length=12, padded=True
    )
    return Backbone(config, facts, [SoftmaxAttention], seed=3)


def streams() -> Task:
    """Return a task whose rows go on from batch to batch."""
    characters.SAMPLE_BYTES = 1200
    task = characters.Characters(
        corpus=characters.CharacterCorpus.text8,
        source=characters.CharacterSource.sample,
        length=LENGTH,
        contiguous=True,
        regime=Regime.memory,
        memory=MEMORY,
    )
    task.prepare()
    return task


def language_model(mixer: MixerFactory, **options: Any) -> Backbone:
    """Return a small causal model."""
    config = BackboneConfig(
        **{"width": 8, "heads": 2, "depth": 2, "feed_forward_width": 16} | options
    )
    facts = TaskFacts(
        head=Head.language_modelling, vocabulary=27, classes=27, max_length=64, memory=8
    )
    return Backbone(config, facts, [mixer], seed=3)


def choosy() -> Backbone:
    """Return a model with a weight that few rows make use of: often no rank does, or one alone."""
    found = classifier()
    found.rare = nn.Parameter(torch.ones(1))
    judge = found.forward

    def forward(tokens: Tensor, *others: Any, **more: Any) -> Any:
        outcome, rows = judge(tokens, *others, **more), tokens[:, 0, 0] == 7
        if not rows.any():
            return outcome
        return outcome._replace(nll=outcome.nll + found.rare * rows)

    found.forward = forward  # type: ignore[method-assign]
    return found


MODELS: dict[str, Callable[[], Backbone]] = {
    "classifier": classifier,
    "choosy": choosy,
    "redrawn": partial(classifier, redraw_every=2),
    "dropping": partial(classifier, dropout=0.2),
    "remembering": partial(
        language_model, SoftmaxAttention, positions=Positions.none, tied_embeddings=True
    ),
    "token model": partial(language_model, SoftmaxAttention, positions=Positions.none),
    "adaptive": partial(
        language_model, SoftmaxAttention, positions=Positions.none, tied_embeddings=False,
        softmax="adaptive", softmax_cutoffs=[4],
    ),
    "detector": detector,
    "reversible": partial(language_model, LinearAttention, residual=Residual.reversible,
                          positions=Positions.none),
    "recomputing": partial(language_model, SoftmaxAttention, activation_checkpointing=True,
                           positions=Positions.none),
}  # fmt: skip
TASKS: dict[str, Callable[[], Task]] = {
    "tiny": Tiny,
    "weighted": Weighted,
    "rare": Rare,
    "rare tokens": RareTokens,
    "streams": streams,
    "detecting": Detecting,
}
CURVE = {"train_loss", "train_penalty", "accuracy", "loss"}


@dataclass
class Asked:
    """One training."""

    model: str = "classifier"
    task: str = "tiny"
    processes: int = 1
    sharded: bool = False
    folder: str | None = None
    optim: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    signalled: tuple[int, int, int] | None = None
    """(rank, step, signal): sent by that rank to itself after that step."""
    lag: int = 0
    """Not 0: ranks wait at random, drawn from this number and theirs."""


class Lagging(TorchDispatchMode):
    """Waits before and after each exchange, and at some of the other operations."""

    def __init__(self, *seed: object) -> None:
        super().__init__()
        self.random = random.Random(str(seed))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do an operation, late."""
        often = 0.5 if "c10d" in func.namespace else 0.01
        self.wait(often)
        result = func(*args, **(kwargs or {}))
        self.wait(often)
        return result

    def wait(self, often: float) -> None:
        """Wait for up to 3 ms, with a probability of `often`."""
        if self.random.random() < often:
            time.sleep(0.003 * self.random.random())


@dataclass
class Found:
    """What came of it."""

    ending: Ending
    rows: list[Measurement] = field(default_factory=list)
    outcomes: list[Outcomes] = field(default_factory=list)
    gradients: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Of the first updates, by step."""
    weights: dict[str, Tensor] = field(default_factory=dict)

    def curve(self) -> list[tuple[Any, ...]]:
        """Return what is compared: (name, step, labels) and value."""
        return [
            ((row.metric, row.step, tuple(sorted(row.labels.items()))), row.value)
            for row in self.rows
            if row.metric in CURVE
        ]


def done(asked: Asked) -> Found:
    """Train, and return what it said."""
    return done_in_turn({"": asked})[""]


def done_in_turn(many: dict[str, Asked]) -> dict[str, Found]:
    """Train one after the other, all with the number of processes of the first."""
    said: list[Any] = []
    (first, *_) = many.values()
    ending = run(
        work, many, on_message=said.append, processes=first.processes, threads=1, seconds=300
    )
    found = {name: Found(ending) for name in many}
    for name, each in said:
        if isinstance(each, Measurement):
            found[name].rows.append(each)
        elif isinstance(each, Outcomes):
            found[name].outcomes.append(each)
        else:
            found[name].gradients |= [each]
    for name, asked in many.items():
        if asked.folder is not None and (path := Path(asked.folder, "weights.pt")).exists():
            found[name].weights = torch.load(path, weights_only=True)
    return found


def work(many: dict[str, Asked], send: Send) -> None:
    """Train in this process, one of the ranks; one group of processes serves for all."""
    advance = Trainer.advance
    together = len(many) > 1 and "RANK" in os.environ
    if together:
        dist.init_process_group("gloo")
    for name, asked in many.items():
        late = Lagging(asked.lag, os.environ.get("RANK")) if asked.lag else nullcontext()
        with late:
            _train(asked, lambda each, name=name: send((name, each)))
        Trainer.advance = advance  # type: ignore[method-assign]
    if together:
        dist.destroy_process_group()


def _train(asked: Asked, send: Send) -> None:
    torch.manual_seed(0)
    model: Backbone = MODELS[asked.model]().double()
    rank = int(os.environ.get("RANK", "0"))
    _watch(asked, rank, send)
    for item in train(
        model,
        TASKS[asked.task](),
        optim=OptimConfig(
            **{"steps": 6, "batch_size": 8, "peak_learning_rate": 1e-2} | asked.optim
        ),
        config=TrainConfig(
            **{"log_every_steps": 1, "evaluate_every_steps": 3, "keep": Keep.best}
            | {"evaluation_batch_size": 2}
            | asked.config
        ),
        hardware=HardwareProfile(name="cpu", processes=asked.processes, sharded=asked.sharded),
        seed=3,
        checkpoints=None if asked.folder is None else Path(asked.folder),
    ):
        send(item)


def _watch(asked: Asked, rank: int, send: Send) -> None:
    advance = Trainer.advance

    def watched(self: Trainer, batch: Any, wishes: Any = (False, False)) -> Tensor:
        apply = self.updates.apply

        def shown() -> bool:
            if self.step < 3 and not asked.sharded:
                named = self.model.named_parameters()
                own = {n: p.grad.numpy().copy() for n, p in named if p.grad is not None}
                send((self.step, own))
            return apply()

        self.updates.apply = shown  # type: ignore[method-assign]
        loss = advance(self, batch, wishes)
        self.updates.apply = apply  # type: ignore[method-assign]
        if asked.signalled is not None and asked.signalled[:2] == (rank, self.step):
            os.kill(os.getpid(), signal.Signals(asked.signalled[2]))
        return loss

    Trainer.advance = watched  # type: ignore[method-assign]
