"""Fine-tuning from the weights of another model: how fast does it recover?

This is an ordinary training with other initial weights: `lra.models.transfer.weights` describes
which weights of one model another model takes. The model is validated before the first step and
during training, so the rows are a curve of recovery. The score of the model that the weights come
from is stored, too. `source=scratch` is the same run from random weights, for comparison.

Choromanski et al., arXiv:2009.14794, do this experiment: they copy the weights of a Transformer to
a Performer, and evaluate it before and after fine-tuning.
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
    """Where the initial weights come from; everything else is an ordinary training."""

    files: ClassVar[tuple[str, ...]] = ("weights",)
    trains: ClassVar[bool] = True

    source: str | None = "softmax"
    """Family that the sweep trains first, with its default options; `scratch`: the run starts from
    random weights."""
    weights: str | None = None
    """A safetensors file with the tensor names of GPT-2, BERT or the run's model; it replaces
    `source`."""
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
                "transfer copies weights either from a family that lra trains first (source) or "
                f"from a file (weights): got source={self.source}, weights={self.weights}; set "
                "source to a family and weights=null, or set weights to a file and source=null"
            )
        if self.weights is not None and not Path(self.weights).is_file():
            raise ValueError(
                f"weights: there is no file {self.weights}; name an existing .safetensors file, or "
                "set weights=null and name a family in source"
            )
        for group, options in (self.pretraining or {}).items():
            if group not in CHANGEABLE or not isinstance(options, Mapping):
                raise ValueError(
                    f"pretraining: got {group}={options!r}; wanted options of the groups "
                    f"{' and '.join(CHANGEABLE)}, for example {{optim: {{steps: 2000}}}}"
                )
        if self.pretraining and not self.starts_from() and self.source != SCRATCH:
            raise ValueError(
                "pretraining describes the training of a source, but the weights come from a file; "
                "set pretraining to null"
            )

    def starts_from(self) -> list[str]:
        """Return the family that a sweep trains first; none for `scratch` or a file."""
        return [] if self.source in (None, SCRATCH) else [str(self.source)]

    def training_changes(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the options in which the training of the source differs from the run."""
        return self.pretraining or {}

    @property
    def started_from(self) -> str:
        """Return what the run starts from: a family, `scratch`, or the name of a file."""
        return self.source or Path(str(self.weights)).stem

    def run(self, work: Work) -> Iterator[Item]:
        """Yield the curve of recovery and the final scores."""
        source = None
        for name in self.starts_from():  # one name or none
            source = PretrainedModel(work.trained(name), work.source_task(name))
            phase("preparing the data of the source")
            source.task.prepare()  # they may be missing if another machine did the training
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
    """A trained model, and the task on which it was trained."""

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
    """Copy weights into a model, evaluate their source, then train; yield rows and outcomes.

    Args:
        model: The model that gets the weights.
        task: The task, with prepared data.
        source: The trained model that `config.source` names; None if it names none.
        optim: Optimiser, schedule and batch of the fine-tuning.
        config: Which weights are copied, and all other options of the training.
        hardware: The device, and the number format of computations.
        seed: Decides the order of batches, and dropout.
        checkpoints: Folder in which the fine-tuning saves its state; None: it saves nothing.

    Raises:
        Unsupported: The weights do not fit the model.
        ValueError: The file of weights cannot be used.
        Diverged: The loss is not finite.
        Interrupted: SIGTERM came; the next call resumes from the last checkpoint.
    """
    if config.weights is not None:
        yield from initial_parameters(load_checkpoint(Path(config.weights), model, config.parts))
    elif source is not None:
        yield from initial_parameters(transfer(source.model, model, config.parts))
        yield from _evaluate_source(source, config, hardware)
    yield from train(
        model,
        task,
        optim=optim,
        config=config,
        hardware=hardware,
        seed=seed,
        checkpoints=checkpoints,
    )


def _evaluate_source(
    source: PretrainedModel, config: Transfer, hardware: HardwareProfile
) -> Iterator[Measurement]:
    """Validate the source on the task of its training, as the fine-tuned model is validated."""
    device = torch.device(str(hardware.device))

    with stop_signal() as stop:

        def check_stop() -> None:
            if stop.is_set():
                raise Interrupted(
                    "stopped while evaluating the source model, before the first step"
                )

        with phase_prefix("source"), autocast(hardware):
            scores = evaluate(
                source.model.to(device),
                source.task,
                "validation",
                batch_size=config.evaluation_batch_size,
                device=device,
                before_batch=check_stop,
                examples=config.validation_examples,
            )
    for metric in ("accuracy", "loss", "mse"):
        if metric in scores.measured:
            yield Measurement(
                metric=f"source_{metric}",
                value=scores.measured[metric],
                labels={"split": "validation"},
            )
