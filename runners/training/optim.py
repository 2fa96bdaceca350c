"""The options of the optimiser, its schedule and its batches: `conf/optim`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import Any, TypeAlias

from lra.conf.choices import by_name
from lra.models.idle import Need, defaults, idle


class Optimiser(StrEnum):
    """The rule by which a gradient moves the weights."""

    adamw = auto()
    """Adam with decoupled weight decay (arXiv:1711.05101): w -= rate * decay * w."""
    adam = auto()
    """Adam with L2 decay (arXiv:1412.6980): decay * w is a part of the gradient."""
    adafactor = auto()
    """Adam that stores second moments as row and column sums, with steps relative to the size of a
    weight (arXiv:1804.04235); decoupled decay. It waits for the device twice for each parameter."""
    adagrad = auto()
    """The gradient divided by the root of the sum of all squared gradients (Duchi et al. 2011); L2
    decay."""
    radam = auto()
    """Adam with a rectified variance (arXiv:1908.03265); decoupled decay, as in its code."""
    sgd = auto()
    """The gradient with momentum; L2 decay."""
    lion = auto()
    """The sign of a running mean of gradients (arXiv:2302.06675); decoupled decay."""
    lamb = auto()
    """Adam's step plus decay * w, scaled to the norm of each parameter (arXiv:1904.00962)."""


class Schedule(StrEnum):
    """How the learning rate changes during training."""

    constant = auto()
    cosine = auto()
    """Half a cosine, from the end of warm-up to the last step."""
    cosine_restarts = auto()
    """Half cosines in a row: the first has `cycle_steps` steps, each next one `cycle_multiplier`
    times as many (SGDR, arXiv:1608.03983)."""
    lra_cosine = auto()
    """The cosine of the Long Range Arena code, which starts again every `cycle_steps`."""
    linear = auto()
    polynomial = auto()
    """A power of the fraction of steps that remain."""
    one_cycle = auto()
    """Up to the peak and down to nearly 0 (arXiv:1708.07120), as in PyTorch's OneCycleLR."""
    rsqrt = auto()
    """base / sqrt(step), as in the Long Range Arena code; its peak is base / sqrt(warmup_steps)."""
    inverse_sqrt = auto()
    """The schedule of "Attention is all you need" and of fairseq, given by its peak."""
    plateau = auto()
    """Constant, but lowered whenever validation stops improving."""


class Anneal(StrEnum):
    """The shape of the rise and the fall of one_cycle."""

    linear = auto()
    cos = auto()


class DecayedWeights(StrEnum):
    """Which weights decay."""

    all = auto()
    matrices = auto()
    """Only matrices: no parameters with one dimension (such as biases and gains of norms), and no
    embeddings of tokens and positions, even if the head shares them."""
    all_but_biases = auto()
    """All weights but the biases and gains of norms inside the stack, as in the S4 code. Embeddings
    decay, and so do all parameters outside the stack."""


class Statistics(StrEnum):
    """Over which rows a model computes statistics (`Backbone.by_batch`)."""

    batch = auto()
    """All rows of a batch, which must stay whole."""
    micro_batch = auto()
    """The rows of each micro-batch, as is usual when gradients are accumulated."""


@by_name
@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """An optimiser, a schedule, clipping of gradients, and averaging of weights.

    `peak_learning_rate` is the largest rate, except for `rsqrt`: there it is the base B of the Long
    Range Arena code, and the largest rate is B / sqrt(warmup_steps). `conf/optim` and
    `conf/config.yaml` explain the options of each optimiser and schedule.
    """

    optimiser: Optimiser = Optimiser.adamw
    peak_learning_rate: float = 1e-3
    betas: list[float] = field(default_factory=lambda: [0.9, 0.98])
    epsilon: float = 1e-9
    momentum: float = 0.0
    nesterov: bool = False
    initial_accumulator: float = 0.0
    tensor_clip: float | None = None
    beta2_decay: float = -0.8
    update_clip: float = 1.0
    least_scale: float = 1e-3
    weight_decay: float = 0.0
    decayed_weights: DecayedWeights = DecayedWeights.all
    clip: float | None = 1.0
    """Largest norm of the whole gradient; None: it has no limit."""
    clip_value: float | None = None
    schedule: Schedule = Schedule.cosine
    warmup_steps: int = 0
    final_fraction: float = 0.0
    """Lowest learning rate of cosine, cosine_restarts, linear and polynomial, as a fraction of the
    peak."""
    cycle_steps: int | None = None
    cycle_multiplier: int = 1
    power: float = 1.0
    anneal: Anneal = Anneal.linear
    start_divisor: float = 25.0
    end_divisor: float = 1e4
    momentum_range: list[float] | None = None
    plateau_factor: float = 0.1
    plateau_patience: int = 10
    plateau_threshold: float = 1e-4
    plateau_cooldown: int = 0
    plateau_least: float = 0.0
    label_smoothing: float = 0.0
    ema_decay: float | None = None
    ema_warmup: bool = False
    average_after: int | None = None
    """Averaging starts when a validation score is worse than the best score of all validations
    except the last ones, whose number this is (NT-ASGD, arXiv:1708.02182); None: weights are not
    averaged."""
    steps: int = 1000
    batch_size: int = 32
    """Rows of a batch, for any `micro_batch_size`."""
    micro_batch_size: int | None = None
    """Rows that are in memory at the same time; None: the whole batch."""
    statistics: Statistics = Statistics.batch

    def __post_init__(self) -> None:
        """Check the options; a ValueError says what to type instead."""
        for name, (suits, wanted) in RANGES.items():
            value = getattr(self, name)
            if value is not None and not suits(value):
                advice = f"; {name}=null sets no limit" if name in NULLABLE else ""
                raise ValueError(f"{name} {wanted}: got {value}{advice}")
        if self.warmup_steps > self.steps and self.schedule not in OPEN_ENDED:
            raise ValueError(
                f"warmup_steps={self.warmup_steps} must not exceed steps={self.steps}: lower "
                "optim.warmup_steps, or raise optim.steps"
            )
        micro = self.micro_batch_size
        if micro is not None and not 1 <= micro <= self.batch_size:
            raise ValueError(
                f"micro_batch_size must be from 1 to batch_size={self.batch_size}: got {micro}"
            )
        if self.schedule in IN_CYCLES and self.cycle_steps is None:
            raise ValueError(
                f"schedule={self.schedule} needs cycle_steps, but it is null; type "
                f"optim.cycle_steps={max(1, self.steps - self.warmup_steps)} for one cycle, or a "
                "smaller number for several cycles"
            )
        for sentence in idle(NEEDS, vars(self), defaults(OptimConfig)).values():
            raise ValueError(sentence)  # the first option without effect


def _are_decay_rates(rates: list[float]) -> bool:
    """Return whether a list has two numbers from 0 to below 1."""
    return len(rates) == 2 and all(0 <= rate < 1 for rate in rates)


Range: TypeAlias = tuple[Callable[[Any], bool], str]
POSITIVE: Range = (lambda value: value > 0, "must be positive")
AT_LEAST_0: Range = (lambda value: value >= 0, "must be at least 0")
AT_LEAST_1: Range = (lambda value: value >= 1, "must be at least 1")
FRACTION: Range = (lambda value: 0 <= value <= 1, "must be from 0 to 1")
SHARE: Range = (lambda value: 0 <= value < 1, "must be from 0 to below 1")
RANGES: Mapping[str, Range] = {
    "steps": AT_LEAST_0, "batch_size": AT_LEAST_1, "warmup_steps": AT_LEAST_0,
    "peak_learning_rate": POSITIVE, "epsilon": POSITIVE, "weight_decay": AT_LEAST_0,
    "betas": (_are_decay_rates, "must be two numbers from 0 to below 1"), "momentum": SHARE,
    "initial_accumulator": AT_LEAST_0, "update_clip": AT_LEAST_1, "least_scale": POSITIVE,
    "beta2_decay": (lambda value: value <= 0, "must be at most 0"),
    "clip": POSITIVE, "clip_value": POSITIVE, "tensor_clip": POSITIVE,
    "final_fraction": FRACTION, "cycle_steps": AT_LEAST_1, "cycle_multiplier": AT_LEAST_1,
    "power": POSITIVE, "start_divisor": AT_LEAST_1, "end_divisor": AT_LEAST_1,
    "momentum_range": (
        lambda rates: _are_decay_rates(rates) and rates == sorted(rates),
        "must be two ascending numbers from 0 to below 1, for example [0.85, 0.95]",
    ),
    "plateau_factor": (lambda value: 0 < value < 1, "must be above 0 and below 1"),
    "plateau_patience": AT_LEAST_0, "plateau_threshold": AT_LEAST_0,
    "plateau_cooldown": AT_LEAST_0, "plateau_least": FRACTION,
    "label_smoothing": SHARE, "ema_decay": SHARE,
    "average_after": AT_LEAST_1,
}  # fmt: skip
"""A test of each option's value, and the words for a wrong one. Null passes if its type has it."""
NULLABLE = ("clip", "clip_value", "tensor_clip")
"""Limits of the gradient that null removes."""

WITH_BETAS = (
    Optimiser.adamw, Optimiser.adam, Optimiser.radam, Optimiser.lion, Optimiser.lamb,
)  # fmt: skip
"""Optimisers with two decay rates, `betas`."""
IN_CYCLES = (Schedule.cosine_restarts, Schedule.lra_cosine)
OPEN_ENDED = (Schedule.rsqrt, Schedule.inverse_sqrt)
"""Schedules that never end, so their warm-up may be longer than the training."""

NEEDS = (
    Need("betas", optimiser=WITH_BETAS),
    Need("epsilon", optimiser=tuple(
        each for each in Optimiser if each not in (Optimiser.sgd, Optimiser.lion)
    )),
    Need("momentum", optimiser=Optimiser.sgd),
    Need(
        "nesterov",
        words="optimiser=sgd with momentum above 0",
        holds=lambda _, chosen: chosen.optimiser == Optimiser.sgd and chosen.momentum > 0,
    ),
    Need("initial_accumulator", "tensor_clip", optimiser=Optimiser.adagrad),
    Need("beta2_decay", "update_clip", "least_scale", optimiser=Optimiser.adafactor),
    Need(
        "decayed_weights",
        words="weight_decay above 0",
        holds=lambda _, chosen: chosen.weight_decay > 0,
    ),
    Need("cycle_steps", schedule=IN_CYCLES),
    Need("cycle_multiplier", schedule=Schedule.cosine_restarts),
    Need("power", schedule=Schedule.polynomial),
    Need("anneal", "start_divisor", "end_divisor", "momentum_range", schedule=Schedule.one_cycle),
    Need("momentum_range", optimiser=(*WITH_BETAS, Optimiser.sgd)),
    Need(
        "plateau_factor", "plateau_patience", "plateau_threshold", "plateau_cooldown",
        "plateau_least", schedule=Schedule.plateau,
    ),
    Need(
        "ema_warmup",
        words="ema_decay",
        holds=lambda _, chosen: chosen.ema_decay is not None,
    ),
    Need(
        "average_after",
        words="ema_decay=null",
        holds=lambda _, chosen: chosen.ema_decay is None,
    ),
)  # fmt: skip
"""Options that need a certain value of another option."""
