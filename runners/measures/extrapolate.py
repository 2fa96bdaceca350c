"""Length extrapolation: a trained model on test examples longer or shorter than in training.

One model is built for each length, with the weights of the same training. Nothing is trained here,
and test examples differ from training examples only in length. If the parameters of a family depend
on the length, or the family refuses a length, a row states this reason.
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
    """The lengths at which a trained model is evaluated, and the number of examples."""

    factors: list[float] = field(default_factory=lambda: [0.5, 1.0, 2.0, 4.0, 8.0, 16.0])
    """Lengths of test examples, divided by the length of training examples."""
    examples: int | None = 200
    """How many test examples are evaluated; None: the whole split. In a long text it counts windows
    of the training length; their tokens are then cut into longer or shorter windows."""
    batch_size: int = 64
    """Examples in a batch up to the training length. Batches of longer examples have fewer, so that
    all have about as many tokens."""

    def __post_init__(self) -> None:
        """Check the options; a ValueError says what to type instead."""
        if not self.factors or not all(0 < f < math.inf for f in self.factors):
            raise ValueError(
                f"factors: got {self.factors}; wanted one or more positive numbers, where 1 is "
                "the training length"
            )
        if len(set(self.factors)) < len(self.factors):
            raise ValueError(f"factors: got {self.factors}; wanted no number twice")
        if self.examples is not None and self.examples < 1:
            raise ValueError(
                f"examples must be at least 1: got {self.examples}; null evaluates the whole split"
            )
        check_least(1, batch_size=self.batch_size)

    def starts_from(self) -> list[str]:
        """Return `OWN`, because a sweep trains the model of the run first."""
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
    """Load trained weights into a model that was built for another length, and return the model.

    Raises:
        Unsupported: A parameter or buffer of the model has another shape than in training.
    """
    for name, tensor in model.state_dict().items():
        if name in weights and tensor.shape != weights[name].shape:
            trained = list(weights[name].shape)
            if name.startswith("positions."):
                raise Unsupported(
                    f"the trained {model.config.positions} positions have shape {trained} and do "
                    "not fit this length: train with model.backbone.positions=sinusoidal, rotary, "
                    "alibi or none"
                )
            raise Unsupported(
                f"{name} has shape {trained} in training and another shape at this length: choose "
                "a family with the same parameters at every length"
            )
    model.load_state_dict(dict(weights))
    return model


def longer_builds(work: Work, model: Backbone) -> Callable[[int], Backbone]:
    """Return a function that returns a trained model for rows of a number of tokens.

    The function returns `model` itself for rows up to the length of its training. For longer rows,
    it builds a model with the same weights, and raises `Unsupported` if they do not fit.
    """
    facts, trained = work.facts(), model.state_dict()

    def build(tokens: int) -> Backbone:
        if tokens <= facts.max_length:
            return model
        return fit_weights(work.build(facts=replace(facts, max_length=tokens)), trained)

    return build


def extrapolate(
    build: Callable[[int], Backbone],
    stretch: Callable[[Mapping[str, object]], Stretches],
    task: Task,
    *,
    config: Extrapolate,
    hardware: HardwareProfile,
) -> Iterator[Measurement]:
    """Evaluate a trained model at every factor, the smallest first, and yield rows.

    Args:
        build: Builds the trained model for a given number of tokens; raises `Unsupported` if the
            model cannot read so many.
        stretch: Builds the task with changed options and prepares its data; raises ValueError if
            the task cannot have these options.
        task: The task of the training, with prepared data.
        config: The lengths, and the number of examples.
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
            yield from _evaluate_factor(
                factor, build, stretch, task, config=config, hardware=hardware
            )


def _evaluate_factor(
    factor: float,
    build: Callable[[int], Backbone],
    stretch: Callable[[Mapping[str, object]], Stretches],
    task: Stretches,
    *,
    config: Extrapolate,
    hardware: HardwareProfile,
) -> Iterator[Measurement]:
    """Yield the scores of the model at one factor, or a row with the reason why there are none."""
    metric = task.spec.metric
    labels = {
        "split": SPLIT,
        "factor": f"{factor:g}",
        "tokens": str(round(factor * task.trained_length)),
        "trained_tokens": str(task.trained_length),
    }

    def failure_row(status: Status, reason: str) -> Measurement:
        return Measurement(metric=metric, status=status, reason=reason, labels=labels)

    try:
        options = task.stretched(factor)
        phase("preparing data")
        longer = stretch(options) if options else task  # without options, it has this length
    except BadData:  # a kind of ValueError, but one that fails the whole run
        raise
    except ValueError as error:
        yield failure_row(Status.skipped, f"the task has no test examples of this length: {error}")
        return
    labels["tokens"] = str(longer.tested_length)
    limit = config.examples
    try:
        scores = _evaluate_test_split(
            build(longer.tested_length),
            longer,
            examples=None if limit is None else task.equal_work(limit, factor),
            rows=config.rows(factor),
            hardware=hardware,
        )
    except Unsupported as error:
        yield failure_row(Status.unsupported, str(error))
        return
    except OverflowError:
        reason = "the loss is so large that its perplexity is not finite"
        yield failure_row(Status.diverged, reason)
        return
    if not math.isfinite(scores.loss):
        yield failure_row(Status.diverged, f"the loss is {scores.measured['loss']} at this length")
        return
    # A window has many items, so its hit is a fraction.
    count_label = "examples" if scores.outcomes.hit.dtype == bool else "windows"
    labels[count_label] = str(len(scores.outcomes.index))
    for name, value in scores.measured.items():
        yield Measurement(metric=name, value=value, labels=labels)


def _evaluate_test_split(
    model: Backbone, task: Task, *, examples: int | None, rows: int, hardware: HardwareProfile
) -> SplitScores:
    """Return the test scores of a model, in batches of `rows`; `examples=None` takes all."""
    device = torch.device(str(hardware.device))
    with autocast(hardware):
        return evaluate(
            model.to(device), task, SPLIT, batch_size=rows, device=device, examples=examples
        )
