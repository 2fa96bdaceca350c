"""Dynamic evaluation: a trained model keeps learning from the text on which it is evaluated.

    L_i            mean loss of the tokens that count in segment i, judged with w_i
    sgd            w_{i+1} = w_i - eta g_i + lambda (w_0 - w_i),                 g_i = d L_i / d w_i
    rms            w_{i+1} = w_i - eta g_i / (m + eps) + min(1, lambda m / mean(m)) (w_0 - w_i)

w_0 are the trained weights, m the root of the mean square of each weight's gradient over batches of
the training split, and mean(m) the mean of its means over every parameter. A segment is judged
before the weights have seen it, so no token is predicted from itself or from what comes after it.

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
from lra.runners.training.prefetch import to_device
from lra.runners.training.recurrent_state import RecurrentStates, remembered_tokens
from lra.runners.training.stopping import stop_signal
from lra.tasks.task import SPLITS, Batch, Kind, Task, WindowedTask


class UpdateRule(StrEnum):
    """How weights learn from the text."""

    sgd = auto()
    rms = auto()


@by_name
@dataclass(frozen=True, kw_only=True)
class DynamicEvaluation(TrainedRunner):
    """What is evaluated, and how weights change on the way."""

    rule: UpdateRule = UpdateRule.sgd
    learning_rate: float = 0.01
    """The rate eta; 0 gives the ordinary evaluation under both rules."""
    decay: float = 0.0
    """The rate lambda at which weights return to the trained ones."""
    epsilon: float = 2e-5
    statistics_batches: int = 100
    """Training batches from whose gradients m is computed."""
    statistics_batch_size: int = 32
    splits: list[str] = field(default_factory=lambda: ["validation", "test"])
    """Splits to evaluate, each starting with the trained weights."""
    batch_size: int = 1
    """Rows that are evaluated before each update; 1 reads a split as one stream."""

    def __post_init__(self) -> None:
        """Check the options; a ValueError says what to type instead."""
        check_least(0, learning_rate=self.learning_rate, decay=self.decay)
        if self.decay > 1:
            raise ValueError(
                "decay is the fraction by which weights return to the trained ones after each "
                f"update, at most 1: got {self.decay}"
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
                    f"splits: got {split!r}; wanted one or more of {', '.join(SPLITS[1:])}, each "
                    "named once"
                )
        for sentence in idle(NEEDS, vars(self), defaults(DynamicEvaluation)).values():
            raise ValueError(sentence)

    def marks(self, regime: str) -> Mapping[str, str]:
        """Return the regime, which names rule and rates to separate it from other evaluations."""
        decay = f", decay {self.decay:g}" if self.decay else ""
        how = f"dynamic: {self.rule}, learning rate {self.learning_rate:g}{decay}"
        return {"regime": f"{regime}; {how}"}

    def passes(self, work: Work) -> list[Passes]:
        """Return the passes over every split, and over the batches of the statistics."""
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
            Unsupported: The task has no tokens in an order; the precision keeps no small gradient.
        """
        model, origins = self.model_of(work)
        yield from origins
        yield from dynamic_evaluation(model, work.task, config=self, hardware=work.hardware)


NEEDS = (Need("epsilon", "statistics_batches", "statistics_batch_size", rule=UpdateRule.rms),)
"""Which options need which others."""


def dynamic_evaluation(
    model: Backbone, task: Task, *, config: DynamicEvaluation, hardware: HardwareProfile
) -> Iterator[Measurement]:
    """Evaluate each split while weights learn from it, and yield rows; then restore the weights.

    Args:
        model: Trained.
        task: Prepared: language modelling.
        config: What is judged, and how weights move.
        hardware: The device, and the number format of computations.

    Raises:
        Unsupported: The task is not language modelling, or the precision rounds small gradients
            to 0.
        Diverged: A loss is not finite.
        Interrupted: After SIGTERM; scores so far are dropped.
    """
    if task.spec.kind is not Kind.language_modelling:
        raise Unsupported(
            f"dynamic evaluation needs a long text: got task={task.spec.name}, which is a task of "
            f"{task.spec.kind}; choose a language-modelling task"
        )
    if hardware.precision is Precision.float16:
        raise Unsupported(
            "float16 rounds small gradients to 0: got hardware.precision=float16; choose "
            "bfloat16 or float32"
        )
    device = torch.device(str(hardware.device))
    model = model.to(device).eval()
    for split in config.splits:
        check_streams(model, task, split, config.batch_size, training=False)
    scales = None
    with stop_signal() as stop:

        def check_stop() -> None:
            if stop.is_set():
                raise Interrupted("stopped in dynamic evaluation; a rerun begins it again")

        if config.rule is UpdateRule.rms:
            phase("gradients of the training split")
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
                raise Diverged(f"the {split} loss is too large for a perplexity; {_CALMER}") from (
                    error
                )
            finally:
                weights.restore()
            yield from score_rows(scores, {})


class FollowingWeights:
    """A model's weights while they learn from a text.

    Args:
        model: Has the weights.
        config: Update rule and rates.
        scales: m of each parameter, for the rule `rms`: see `gradient_scales`. None: for `sgd`.
    """

    def __init__(
        self, model: Backbone, config: DynamicEvaluation, scales: Sequence[Tensor] | None
    ) -> None:
        self.config, self.scales = config, scales
        self.weights = _trainable(model)
        self.trained = [weight.detach().clone() for weight in self.weights]
        self.returns: list[Tensor | float] = [config.decay for _ in self.weights]
        """Of each weight, the fraction of its way back to the trained value in an update."""
        if scales is not None:
            mean = sum(float(scale.mean()) for scale in scales) / len(scales)
            self.returns = [(config.decay / mean * scale).clamp(max=1.0) for scale in scales]

    def learn(self, outcome: Outcome, batch: Batch) -> None:
        """Update by the mean loss of the counted tokens in the last evaluated rows."""
        loss = mean_loss(outcome, batch)
        if not math.isfinite(float(loss.detach())):
            raise Diverged(f"the loss became {float(loss.detach())} during evaluation; {_CALMER}")
        gradients = _gradients(loss, self.weights)
        with torch.no_grad():
            for number, weight in enumerate(self.weights):
                move = gradients[number]
                if self.scales is not None:
                    move = move / (self.scales[number] + self.config.epsilon)
                back = self.returns[number] * (self.trained[number] - weight)
                weight.add_(back - self.config.learning_rate * move)
        torch.clear_autocast_cache()  # its copies of the weights are from before the update

    def restore(self) -> None:
        """Restore the trained weights."""
        with torch.no_grad():
            for weight, trained in zip(self.weights, self.trained, strict=True):
                weight.copy_(trained)


def mean_loss(outcome: Outcome, batch: Batch) -> Tensor:
    """Return the mean loss of the tokens that count, in nats."""
    if batch.weight is None:
        return outcome.nll.mean()
    return (outcome.nll * batch.weight).sum() / batch.weight.sum()


def gradient_scales(
    model: Backbone, task: Task, config: DynamicEvaluation, hardware: HardwareProfile
) -> list[Tensor]:
    """Return m of every parameter: the root of the mean square of its gradient over batches."""
    weights, device = _trainable(model), torch.device(str(hardware.device))
    squares, rows = [torch.zeros_like(weight) for weight in weights], config.statistics_batch_size
    streams = RecurrentStates(model, remembered_tokens(model.config, task, training=True))
    count = 0
    whole = task.batches("train", batch_size=rows, seed=0)
    for batch in islice(whole, config.statistics_batches):
        so_far("gradients", count, config.statistics_batches, "batch")
        moved = to_device(batch, device)
        streams.begin(moved.reset)
        with autocast(hardware):
            outcome = model(moved.tokens, moved.target, moved.keep, streams.rows_of(slice(0, rows)))
            loss = mean_loss(outcome, moved)
        for square, gradient in zip(squares, _gradients(loss, weights), strict=True):
            square.add_(gradient**2)
        streams.add(outcome.state)
        streams.end()
        count += 1
    if not count:
        raise Unsupported(
            f"the training split has less than {rows} rows: lower runner.statistics_batch_size"
        )
    return [(square / count).sqrt() for square in squares]


def _gradients(loss: Tensor, weights: Sequence[torch.nn.Parameter]) -> list[Tensor]:
    """Return the gradient of each parameter; zeros if the loss does not depend on it."""
    torch.autograd.backward(loss)
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in weights]
    for p in weights:
        p.grad = None
    return gradients


def _trainable(model: Backbone) -> list[torch.nn.Parameter]:
    return [weight for weight in model.parameters() if weight.requires_grad]


_CALMER = "lower runner.learning_rate"
