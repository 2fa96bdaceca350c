"""Fine-tuning from the weights of another model: how fast does it recover?

The training loop with other initial weights, and nothing else: `lra.models.transfer.weights` says
what a weight of one model means in another. Validation comes before the first step and along the
way, so that the rows are a curve of recovery; the score of the model that the weights come from is
a row too. `source=scratch` is the same run from the weights as drawn, for comparison.

The experiment is that of Choromanski et al., arXiv:2009.14794: the weights of a
Transformer in a Performer, as they are and after fine-tuning.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch

from lra.conf.choices import by_name
from lra.models.backbone.model import Backbone
from lra.models.transfer.checkpoints import load_checkpoint
from lra.models.transfer.weights import Parts, transfer
from lra.runners.isolation.progress import phase, phase_prefix
from lra.runners.measurement.device import autocast
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.measures.train import train
from lra.runners.records import Interrupted, Measurement
from lra.runners.runner import Runner, Work
from lra.runners.training.config import TrainConfig
from lra.runners.training.evaluate import evaluate
from lra.runners.training.initial import initial_parameters
from lra.runners.training.loop import Item
from lra.runners.training.optim import OptimConfig
from lra.runners.training.stopping import stop_signal
from lra.tasks.task import Task

SCRATCH = "scratch"
CHANGEABLE = ("optim", "task")
"""Groups in which the training of the source may differ from the run."""


@by_name
@dataclass(frozen=True, kw_only=True)
class Transfer(TrainConfig, Runner):
    """Where the initial weights come from; all else is an ordinary training."""

    files: ClassVar[tuple[str, ...]] = ("weights",)
    trains: ClassVar[bool] = True

    source: str | None = "softmax"
    """Family that the sweep trains first with its default options; `scratch`: none."""
    weights: str | None = None
    """In place of a source: a safetensors file with tensor names of GPT-2, BERT or the run's
    model."""
    parts: Parts = Parts.all
    pretraining: dict[str, Any] | None = None
    """Options of `optim` and `task` in which the training of the source differs from the run."""
    evaluate_every_steps: int = 25
    evaluate_first: bool = True

    def __post_init__(self) -> None:
        """Check the options; a ValueError says what to type instead."""
        super().__post_init__()
        if (self.source is None) == (self.weights is None):
            raise ValueError(
                "transfer copies weights either from a model that it trains first (source) or "
                f"from a file (weights): got source={self.source}, weights={self.weights}; set "
                "source to a family and weights=null, or source=null and weights to a file"
            )
        if self.weights is not None and not Path(self.weights).is_file():
            raise ValueError(
                f"weights: there is no file {self.weights}; name a .safetensors file, or set "
                "weights=null and source to a family"
            )
        for group, options in (self.pretraining or {}).items():
            if group not in CHANGEABLE or not isinstance(options, Mapping):
                raise ValueError(
                    f"pretraining: got {group}={options!r}; wanted options of "
                    f"{' and '.join(CHANGEABLE)}, as in {{optim: {{steps: 2000}}}}"
                )
        if self.pretraining and not self.starts_from() and self.source != SCRATCH:
            raise ValueError(
                "pretraining needs a source: got weights of a file; set pretraining to null"
            )

    def starts_from(self) -> list[str]:
        """Return the family that is trained first."""
        return [] if self.source in (None, SCRATCH) else [str(self.source)]

    def training_changes(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the options in which the training of the source differs from the run."""
        return self.pretraining or {}

    @property
    def started_from(self) -> str:
        """What the run starts from: a family, `scratch`, or the name of a file."""
        return self.source or Path(str(self.weights)).stem

    def run(self, work: Work) -> Iterator[Item]:
        """Yield the curve of recovery and the final scores."""
        source = None
        for name in self.starts_from():
            source = PretrainedModel(work.trained(name), work.source_task(name))
            phase("preparing data of the source")
            source.task.prepare()  # the training may have been done on another machine
        return fine_tune(
            work.build(),
            work.task,
            source=source,
            optim=work.optim,
            config=self,
            hardware=work.hardware,
            seed=work.seed,
            checkpoints=work.checkpoints,
        )


class PretrainedModel(NamedTuple):
    """A model with its weights, and the task on which it was trained."""

    model: Backbone
    task: Task


def fine_tune(
    model: Backbone,
    task: Task,
    *,
    source: PretrainedModel | None,
    optim: OptimConfig,
    config: Transfer,
    hardware: HardwareProfile,
    seed: int,
    checkpoints: Path | None,
) -> Iterator[Item]:
    """Copy the weights, evaluate their source, train; yield rows and outcomes.

    Args:
        model: The target, as drawn.
        task: Prepared.
        source: The model that `config.source` names, trained; None where it names none.
        optim: Of the fine-tuning.
        config: What is taken, and how the training goes.
        hardware: Where.
        seed: Decides the order of batches, and dropout.
        checkpoints: Where the fine-tuning saves its state; None: nowhere.

    Raises:
        Unsupported: The weights have no place in the model.
        ValueError: The file of weights cannot be used.
        Diverged: The loss is no finite number.
        Interrupted: SIGTERM came; the next call goes on from the last checkpoint.
    """
    if config.weights is not None:
        yield from initial_parameters(load_checkpoint(Path(config.weights), model, config.parts))
    elif source is not None:
        yield from initial_parameters(transfer(source.model, model, config.parts))
        yield from _scored(source, config, hardware)
    yield from train(
        model,
        task,
        optim=optim,
        config=config,
        hardware=hardware,
        seed=seed,
        checkpoints=checkpoints,
    )


def _scored(
    source: PretrainedModel, config: Transfer, hardware: HardwareProfile
) -> Iterator[Measurement]:
    """Score the source as the fine-tuned model is scored along the way, on its own task."""
    device = torch.device(str(hardware.device))

    with stop_signal() as stop:

        def give_way() -> None:
            if stop.is_set():
                raise Interrupted("stopped while evaluating the source, before the first step")

        with phase_prefix("source"), autocast(hardware):
            scores = evaluate(
                source.model.to(device),
                source.task,
                "validation",
                batch_size=config.evaluation_batch_size,
                device=device,
                before_batch=give_way,
                examples=config.validation_examples,
            )
    for metric in ("accuracy", "loss"):
        yield Measurement(
            metric=f"source_{metric}",
            value=scores.measured[metric],
            labels={"split": "validation"},
        )
