"""Loops: a trained model on the test split with several numbers of passes through its loop.

    accuracy(r)   of the weights of one training, with loop_passes = r

Nothing is trained here: passes share their parameters, so weights fit every number of them
(Geiping et al. 2025, arXiv:2502.05171, figure 1).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from lra.conf.bounds import check_least
from lra.conf.choices import by_name
from lra.models.backbone.loop import LoopStack
from lra.models.backbone.model import Backbone
from lra.models.mixer import Unsupported
from lra.runners.isolation.progress import phase_prefix
from lra.runners.measurement.device import autocast
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.measures.trained_runner import TrainedRunner
from lra.runners.records import Measurement, Status
from lra.runners.runner import Work
from lra.runners.training.evaluate import evaluate
from lra.tasks.task import Task

SPLIT = "test"


@by_name
@dataclass(frozen=True, kw_only=True)
class LoopScores(TrainedRunner):
    """The numbers of passes with which a trained model is evaluated."""

    counts: list[int] = field(default_factory=lambda: [1, 2, 4, 8, 16])
    """Numbers of passes through the loop."""
    examples: int | None = None
    """How many test examples are evaluated; None: the whole split."""
    batch_size: int = 64

    def __post_init__(self) -> None:
        """Check the options; a ValueError says what to type instead."""
        if not self.counts or min(self.counts) < 1 or len(set(self.counts)) < len(self.counts):
            raise ValueError(
                f"counts: got {self.counts}; wanted one or more positive numbers of passes, none "
                "of them twice"
            )
        if self.examples is not None and self.examples < 1:
            raise ValueError(
                f"examples must be at least 1: got {self.examples}; null evaluates the whole split"
            )
        check_least(1, batch_size=self.batch_size)

    def run(self, work: Work) -> Iterator[Measurement]:
        """Yield the scores with every number of passes.

        Raises:
            Unsupported: The model has no loop.
        """
        model, origins = self.model_of(work)
        yield from origins
        yield from scores_by_passes(model, work.task, config=self, hardware=work.hardware)

    @classmethod
    def title(cls, row: Measurement) -> str:
        """Return metric and number of passes."""
        return f"{row.metric} with {row.labels['passes']} passes"


def scores_by_passes(
    model: Backbone, task: Task, *, config: LoopScores, hardware: HardwareProfile
) -> Iterator[Measurement]:
    """Evaluate a model with each number of passes, and yield rows.

    Args:
        model: A trained model; at the end it has its own number of passes again.
        task: The task, with prepared data.
        config: The numbers of passes, and the number of examples.
        hardware: The device, and the number format of computations.

    Raises:
        Unsupported: The model has no loop.
    """
    stack, device = model.stack, torch.device(str(hardware.device))
    if not isinstance(stack, LoopStack):
        raise Unsupported(
            "runner=loops varies the number of passes through a loop, but this model has none: set "
            "model.backbone.loop_first to the first layer of a loop"
        )
    model.to(device)
    trained = stack.passes
    try:
        for number, count in enumerate(sorted(config.counts), 1):
            stack.passes = count
            labels = {"split": SPLIT, "passes": str(count), "trained_passes": str(trained)}
            with phase_prefix(f"{count} passes ({number} of {len(config.counts)})"):
                with autocast(hardware):
                    scores = evaluate(
                        model, task, SPLIT, batch_size=config.batch_size, device=device,
                        examples=config.examples,
                    )  # fmt: skip
                if not math.isfinite(scores.loss):
                    yield Measurement(
                        metric=task.spec.metric, status=Status.diverged, labels=labels,
                        reason=f"the loss is {scores.measured['loss']} with {count} passes",
                    )  # fmt: skip
                    continue
            for name, value in scores.measured.items():
                yield Measurement(metric=name, value=value, labels=labels)
    finally:
        stack.passes = trained
