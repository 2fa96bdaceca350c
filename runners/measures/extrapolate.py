"""Length extrapolation: a trained model on test examples longer or shorter than in training.

One model is built for each length, with the weights of one training. Nothing is trained, and no
difficulty changes but length. Where the family's parameters depend on length, or it refuses one,
that length is a row with the reason.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from lra.conf.bounds import check_least
from lra.conf.choices import by_name
from lra.models.backbone.model import Backbone
from lra.models.mixer import Unsupported
from lra.runners.isolation.progress import phase, phase_prefix
from lra.runners.measurement.device import autocast
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.records import Measurement, Status
from lra.runners.runner import OWN, Runner, Work
from lra.runners.training.evaluate import SplitScores, evaluate
from lra.tasks.task import BadData, Stretches, Task

SPLIT = "test"


@by_name
@dataclass(frozen=True, kw_only=True)
class Extrapolate(Runner):
    """At which lengths a trained model is evaluated, and on how many examples."""

    factors: list[float] = field(default_factory=lambda: [0.5, 1.0, 2.0, 4.0, 8.0, 16.0])
    """Lengths of test examples / length of training examples."""
    examples: int | None = 200
    """Test examples to evaluate. In a stream of text: windows of the training length, whose tokens
    are then cut into longer or shorter windows. None = the whole split."""
    batch_size: int = 64
    """Examples in a batch up to the training length; longer ones have fewer, so that tokens stay
    equal."""

    def __post_init__(self) -> None:
        """Check the options; a ValueError says what to type instead."""
        if not self.factors or not all(0 < f < math.inf for f in self.factors):
            raise ValueError(
                f"factors: got {self.factors}; wanted one or more positive numbers, where 1 is "
                "the training length"
            )
        if len(set(self.factors)) < len(self.factors):
            raise ValueError(f"factors: got {self.factors}; name each one once")
        if self.examples is not None and self.examples < 1:
            raise ValueError(
                f"examples must be at least 1: got {self.examples}; null evaluates the whole split"
            )
        check_least(1, batch_size=self.batch_size)

    def starts_from(self) -> list[str]:
        """Return the training that must exist: that of the run's model."""
        return [OWN]

    def rows(self, factor: float) -> int:
        """Return how many examples of `factor` times the training length a batch holds."""
        return max(1, int(self.batch_size / max(1.0, factor)))

    def run(self, work: Work) -> Iterator[Measurement]:
        """Yield the scores at every factor."""
        facts, weights = work.facts(), work.weights()

        def build(tokens: int) -> Backbone:
            longer = replace(facts, max_length=max(facts.max_length, tokens))
            return fit_weights(work.build(facts=longer), weights)

        return extrapolate(build, work.stretched, work.task, config=self, hardware=work.hardware)

    @classmethod
    def title(cls, row: Measurement) -> str:
        """Return metric and factor."""
        return f"{row.metric} at {row.labels['factor']} x"


def fit_weights(model: Backbone, weights: Mapping[str, Tensor]) -> Backbone:
    """Load the weights of a training into a model of another length, and return it.

    Raises:
        Unsupported: A parameter or buffer has another shape at this length.
    """
    for name, tensor in model.state_dict().items():
        if name in weights and tensor.shape != weights[name].shape:
            trained = list(weights[name].shape)
            if name.startswith("positions."):
                raise Unsupported(
                    f"{model.config.positions} positions are trained parameters of shape "
                    f"{trained}, and this length needs others: train with "
                    "model.backbone.positions=sinusoidal, rotary, alibi or none"
                )
            raise Unsupported(
                f"{name} has another shape at this length than in training, {trained}: choose a "
                "family whose parameters are the same at every length"
            )
    model.load_state_dict(dict(weights))
    return model


def extrapolate(
    build: Callable[[int], Backbone],
    stretch: Callable[[Mapping[str, object]], Stretches],
    task: Task,
    *,
    config: Extrapolate,
    hardware: HardwareProfile,
) -> Iterator[Measurement]:
    """Evaluate a trained model at every factor, short ones first, and yield rows.

    Args:
        build: Makes the trained model for so many tokens; raises `Unsupported` where it cannot.
        stretch: Makes the task from changed options, prepared; raises ValueError where there is
            none.
        task: The task of the training, prepared.
        config: At which lengths.
        hardware: The device, and the number format of computations.

    Raises:
        Unsupported: The task has no test examples of other lengths.
    """
    if not isinstance(task, Stretches):
        raise Unsupported(
            f"{task.spec.name} has no test examples of other lengths; choose listops, a diagnostic "
            "or language modelling"
        )
    factors = sorted(config.factors)
    for number, factor in enumerate(factors, 1):
        with phase_prefix(f"factor {factor:g} ({number} of {len(factors)})"):
            yield from _at(factor, build, stretch, task, config=config, hardware=hardware)


def _at(
    factor: float,
    build: Callable[[int], Backbone],
    stretch: Callable[[Mapping[str, object]], Stretches],
    task: Stretches,
    *,
    config: Extrapolate,
    hardware: HardwareProfile,
) -> Iterator[Measurement]:
    """Yield the rows of one factor: the task's metrics, or why there are none."""
    metric = task.spec.metric
    labels = {
        "split": SPLIT,
        "factor": f"{factor:g}",
        "tokens": str(round(factor * task.trained_length)),
        "trained_tokens": str(task.trained_length),
    }

    def failed(status: Status, reason: str) -> Measurement:
        return Measurement(metric=metric, status=status, reason=reason, labels=labels)

    try:
        options = task.stretched(factor)
        phase("preparing data")
        longer = stretch(options) if options else task
    except BadData:
        raise
    except ValueError as error:
        yield failed(Status.skipped, f"no test examples of this length: {error}")
        return
    labels["tokens"] = str(longer.tested_length)
    limit = config.examples
    try:
        scores = _evaluated(
            build(longer.tested_length),
            longer,
            examples=None if limit is None else task.equal_work(limit, factor),
            rows=config.rows(factor),
            hardware=hardware,
        )
    except Unsupported as error:
        yield failed(Status.unsupported, str(error))
        return
    except OverflowError:
        yield failed(Status.diverged, "the loss is too large for a perplexity")
        return
    if not math.isfinite(scores.measured["loss"]):
        yield failed(Status.diverged, f"the loss was {scores.measured['loss']} at this length")
        return
    counted = "examples" if scores.outcomes.hit.dtype == bool else "windows"
    labels[counted] = str(len(scores.outcomes.index))
    for name, value in scores.measured.items():
        yield Measurement(metric=name, value=value, labels=labels)


def _evaluated(
    model: Backbone, task: Task, *, examples: int | None, rows: int, hardware: HardwareProfile
) -> SplitScores:
    device = torch.device(str(hardware.device))
    with autocast(hardware):
        return evaluate(
            model.to(device), task, SPLIT, batch_size=rows, device=device, examples=examples
        )
