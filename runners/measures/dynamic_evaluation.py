"""Dynamic evaluation: a trained model keeps learning from the text on which it is evaluated.

    L_i            mean loss of the tokens that count in segment i, computed with the weights w_i
    sgd            w_{i+1} = w_i - eta g_i + lambda (w_0 - w_i),                 g_i = d L_i / d w_i
    rms            w_{i+1} = w_i - eta g_i / (m + eps) + min(1, lambda m / mean(m)) (w_0 - w_i)

w_0 are the trained weights. m is the root mean square of the gradient of each weight over batches
of the training split, and mean(m) is the mean over parameters of the mean of m. A segment is
evaluated before the weights learn from it, so each token is predicted from earlier tokens only.

Source: Krause et al. 2018, arXiv:1709.07432; `rms` with the rates of decay as in the released code.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum, auto
from itertools import islice

import torch
from torch import Tensor

from lra.conf.bounds import check_least, check_positive
from lra.conf.choices import by_name
from lra.models.backbone.model import Backbone, Outcome
from lra.models.idle import Need, defaults, idle
from lra.models.mixer import Unsupported
from lra.runners.isolation.progress import phase, phase_prefix, so_far
from lra.runners.measurement.device import autocast
from lra.runners.measurement.hardware import HardwareProfile, Precision
from lra.runners.measures.passes import size
from lra.runners.measures.trained_runner import TrainedRunner
from lra.runners.records import Diverged, Interrupted, Measurement
from lra.runners.runner import Passes, Work
from lra.runners.training.data_check import check_streams
from lra.runners.training.evaluate import SplitScores, evaluate, score_rows
from lra.runners.training.prefetch import asked_of, to_device
from lra.runners.training.recurrent_state import RecurrentStates, remembered_tokens
from lra.runners.training.stopping import stop_signal
from lra.tasks.task import SPLITS, Batch, Kind, Task, WindowedTask


class UpdateRule(StrEnum):
    """The rule by which weights learn from the text."""

    sgd = auto()
    """Gradient descent."""
    rms = auto()
    """Gradient descent with gradients divided by their root mean square in training."""


@by_name
@dataclass(frozen=True, kw_only=True)
class DynamicEvaluation(TrainedRunner):
    """What is evaluated, and how weights change during the evaluation."""

    rule: UpdateRule = UpdateRule.sgd
    learning_rate: float = 0.01
    """The learning rate eta; with 0, weights do not change."""
    decay: float = 0.0
    """The rate lambda at which weights return to the trained weights."""
    epsilon: float = 2e-5
    """Number added to the root mean square m, by which the gradient is divided."""
    statistics_batches: int = 100
    """The root mean square m is computed from the gradients of this many training batches."""
    statistics_batch_size: int = 32
    splits: list[str] = field(default_factory=lambda: ["validation", "test"])
    """Splits to evaluate; the evaluation of each split starts with the trained weights."""
    batch_size: int = 1
    """Rows that are evaluated before each update; 1 reads a split as one text."""

    def __post_init__(self) -> None:
        """Check the options; a ValueError says what to type instead."""
        check_least(0, learning_rate=self.learning_rate, decay=self.decay)
        if self.decay > 1:
            raise ValueError(
                "decay is the fraction by which weights return to the trained ones in each update, "
                f"so it must be at most 1: got {self.decay}"
            )
        check_positive(epsilon=self.epsilon)
        check_least(
            1,
            statistics_batches=self.statistics_batches,
            statistics_batch_size=self.statistics_batch_size,
            batch_size=self.batch_size,
        )
        for split in self.splits:
            if split not in SPLITS[1:] or self.splits.count(split) > 1:
                raise ValueError(
                    f"splits: got {split!r}; wanted one or more of {', '.join(SPLITS[1:])}, none "
                    "of them twice"
                )
        for sentence in idle(NEEDS, vars(self), defaults(DynamicEvaluation)).values():
            raise ValueError(sentence)  # the first option without effect

    def marks(self, regime: str) -> Mapping[str, str]:
        """Return the label `regime`, extended by the update rule and its rates."""
        decay = f", decay {self.decay:g}" if self.decay else ""
        rule = f"dynamic: {self.rule}, learning rate {self.learning_rate:g}{decay}"
        return {"regime": f"{regime}; {rule}"}

    def passes(self, work: Work) -> list[Passes]:
        """Return the passes over every split, and over the training batches that give m."""
        task, passes = work.task, []
        length = task.spec.max_length
        for split in self.splits:
            window = task.window(split) if isinstance(task, WindowedTask) else length
            number = size(task, split)
            batches = -(-number // self.batch_size)
            passes.append(Passes(batches, min(self.batch_size, number), window, True))
        if self.rule is UpdateRule.rms:
            window = task.window("train") if isinstance(task, WindowedTask) else length
            passes.append(Passes(self.statistics_batches, self.statistics_batch_size, window, True))
        return passes

    def run(self, work: Work) -> Iterator[Measurement]:
        """Yield the scores of each split.

        Raises:
            Unsupported: The task has no long text, or the precision rounds small gradients to 0.
        """
        model, origins = self.model_of(work)
        yield from origins
        yield from dynamic_evaluation(model, work.task, config=self, hardware=work.hardware)


NEEDS = (Need("epsilon", "statistics_batches", "statistics_batch_size", rule=UpdateRule.rms),)
"""Options that need a certain value of another option."""


def dynamic_evaluation(
    model: Backbone, task: Task, *, config: DynamicEvaluation, hardware: HardwareProfile
) -> Iterator[Measurement]:
    """Evaluate each split while weights learn from it, and yield rows; then restore the weights.

    Args:
        model: A trained model.
        task: A language-modelling task, with prepared data.
        config: What is evaluated, and how weights change.
        hardware: The device, and the number format of computations.

    Raises:
        Unsupported: The task is not language modelling, or the precision rounds small gradients
            to 0.
        Diverged: A loss is not finite.
        Interrupted: SIGTERM came; the scores so far are lost.
    """
    if task.spec.kind is not Kind.language_modelling:
        raise Unsupported(
            f"dynamic evaluation needs a long text, but task={task.spec.name} is a task of "
            f"{task.spec.kind}; choose a language-modelling task"
        )
    if hardware.precision is Precision.float16:
        raise Unsupported(
            "hardware.precision=float16 rounds small gradients to 0, so weights cannot learn; "
            "choose bfloat16 or float32"
        )
    device = torch.device(str(hardware.device))
    model = model.to(device).eval()
    for split in config.splits:
        check_streams(model, task, split, config.batch_size, training=False)
    scales = None
    with stop_signal() as stop:

        def check_stop() -> None:
            if stop.is_set():
                raise Interrupted("stopped during dynamic evaluation; a rerun starts it again")

        if config.rule is UpdateRule.rms:
            phase("computing gradients on the training split")
            scales = gradient_scales(model, task, config, hardware)
        for split in config.splits:
            weights = FollowingWeights(model, config, scales)
            try:
                with phase_prefix(split), autocast(hardware):
                    scores: SplitScores = evaluate(
                        model,
                        task,
                        split,
                        batch_size=config.batch_size,
                        device=device,
                        before_batch=check_stop,
                        learn=weights.learn,
                    )
            except OverflowError as error:
                raise Diverged(
                    f"the {split} loss is so large that its perplexity is not finite; {_ADVICE}"
                ) from error
            finally:
                weights.restore()
            yield from score_rows(scores, {})


class FollowingWeights:
    """The weights of a model, which learn from a text.

    Args:
        model: The model.
        config: Update rule and rates.
        scales: m of each parameter, for the rule `rms`: see `gradient_scales`. None for `sgd`.
    """

    def __init__(
        self, model: Backbone, config: DynamicEvaluation, scales: Sequence[Tensor] | None
    ) -> None:
        self.config, self.scales = config, scales
        self.weights = _trainable_weights(model)
        self.trained = [weight.detach().clone() for weight in self.weights]
        self.returns: list[Tensor | float] = [config.decay for _ in self.weights]
        """For each weight, the fraction by which it returns to its trained value in an update."""
        if scales is not None:
            mean = sum(float(scale.mean()) for scale in scales) / len(scales)
            self.returns = [(config.decay / mean * scale).clamp(max=1.0) for scale in scales]

    def learn(self, outcome: Outcome, batch: Batch) -> None:
        """Update the weights by the gradient of the mean loss of the rows just evaluated."""
        loss = mean_loss(outcome, batch)
        if not math.isfinite(float(loss.detach())):
            raise Diverged(f"the loss became {float(loss.detach())} during evaluation; {_ADVICE}")
        gradients = _take_gradients(loss, self.weights)
        with torch.no_grad():
            for number, weight in enumerate(self.weights):
                move = gradients[number]
                if self.scales is not None:
                    move = move / (self.scales[number] + self.config.epsilon)
                back = self.returns[number] * (self.trained[number] - weight)
                weight.add_(back - self.config.learning_rate * move)
        torch.clear_autocast_cache()  # it caches copies of the weights before the update

    def restore(self) -> None:
        """Restore the trained weights."""
        with torch.no_grad():
            for weight, trained in zip(self.weights, self.trained, strict=True):
                weight.copy_(trained)


def mean_loss(outcome: Outcome, batch: Batch) -> Tensor:
    """Return the mean loss of the tokens that count, in nats."""
    if batch.weight is None:
        return outcome.nll.mean()
    total = batch.weight.sum()
    return (outcome.nll * batch.weight).sum() / total.where(total != 0, 1.0)


def gradient_scales(
    model: Backbone, task: Task, config: DynamicEvaluation, hardware: HardwareProfile
) -> list[Tensor]:
    """Return m of every parameter: the root mean square of its gradient over training batches."""
    weights, device = _trainable_weights(model), torch.device(str(hardware.device))
    # For each parameter, the sum over batches of the squares of its gradient.
    squares, rows = [torch.zeros_like(weight) for weight in weights], config.statistics_batch_size
    streams = RecurrentStates(model, remembered_tokens(model.config, task, training=True))
    count = 0
    batches = task.batches("train", batch_size=rows, seed=0)
    for batch in islice(batches, config.statistics_batches):
        so_far("gradients", count, config.statistics_batches, "batch")
        moved = to_device(batch, device)
        streams.begin(moved.reset)
        with autocast(hardware):
            outcome = model(
                moved.tokens,
                moved.target,
                moved.keep,
                streams.rows_of(slice(0, rows)),
                asked=asked_of(batch, device),
            )
            loss = mean_loss(outcome, moved)
        for square, gradient in zip(squares, _take_gradients(loss, weights), strict=True):
            square.add_(gradient**2)
        streams.add(outcome.state)
        streams.end()
        count += 1
    if not count:
        raise Unsupported(
            f"the training split has fewer than {rows} rows, which is less than one batch: lower "
            "runner.statistics_batch_size"
        )
    return [(square / count).sqrt() for square in squares]


def _take_gradients(loss: Tensor, weights: Sequence[torch.nn.Parameter]) -> list[Tensor]:
    """Return the gradient of each parameter, zeros if the loss does not depend on the parameter."""
    torch.autograd.backward(loss)
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in weights]
    for p in weights:
        p.grad = None
    return gradients


def _trainable_weights(model: Backbone) -> list[torch.nn.Parameter]:
    return [weight for weight in model.parameters() if weight.requires_grad]


_ADVICE = "lower runner.learning_rate"
