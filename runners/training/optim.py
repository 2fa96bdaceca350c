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
    """Second moments as rows and columns, steps relative to a weight's size (arXiv:1804.04235);
    decoupled decay. Waits for the device twice for each parameter."""
    adagrad = auto()
    """Steps over the root of all squared gradients so far (Duchi et al. 2011); L2 decay."""
    radam = auto()
    """Adam with its variance rectified (arXiv:1908.03265); decoupled decay, as in its code."""
    sgd = auto()
    """The gradient itself, with momentum; L2 decay."""
    lion = auto()
    """The sign of a running mean of gradients (arXiv:2302.06675); decoupled decay."""
    lamb = auto()
    """Adam's step scaled to the norm of each parameter (arXiv:1904.00962); decay * w joins it."""


class Schedule(StrEnum):
    """How the learning rate changes over the run."""

    constant = auto()
    cosine = auto()
    """Half a cosine, from the warm-up's end to the last step."""
    cosine_restarts = auto()
    """Cosines one after another, `cycle_steps` long, each `cycle_multiplier` times the last (SGDR,
    arXiv:1608.03983)."""
    lra_cosine = auto()
    """The cosine of the Long Range Arena code, which starts again every `cycle_steps`."""
    linear = auto()
    polynomial = auto()
    """A power of the remaining fraction of the run."""
    one_cycle = auto()
    """Up to the peak and down to nearly nothing (arXiv:1708.07120), as PyTorch's OneCycleLR."""
    rsqrt = auto()
    """The Long Range Arena code's: base / sqrt(step); its peak is base / sqrt(warmup_steps)."""
    inverse_sqrt = auto()
    """That of "Attention is all you need", which fairseq uses too, with its peak named."""
    plateau = auto()
    """Lowered whenever validation stops improving."""


class Anneal(StrEnum):
    """The shape of both halves of one_cycle."""

    linear = auto()
    cos = auto()


class DecayedWeights(StrEnum):
    """Which weights decay."""

    all = auto()
    matrices = auto()
    """Not biases, gains of norms and other parameters with one dimension, nor embeddings of tokens
    and positions. A token embedding that is the head's matrix too is an embedding."""
    all_but_biases = auto()
    """Everything but biases and gains of norms within the stack, as in the S4 code: those of the
    map of inputs and of the head decay, and so do embeddings."""


class Statistics(StrEnum):
    """Over which rows a model takes statistics (`Backbone.by_batch`)."""

    batch = auto()
    """All rows of a batch, which must stay whole."""
    micro_batch = auto()
    """The rows of each micro-batch, as in code that accumulates gradients."""


@by_name
@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """An optimiser, a schedule, and what happens to gradients before and to weights after a step.

    `peak_learning_rate` is the largest rate reached, but for `rsqrt`: there it is the base B of
    the Long Range Arena code, whose peak is B / sqrt(warmup_steps). What the options of one
    optimiser or one schedule mean stands next to them in `conf/optim` and `conf/config.yaml`.
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
    """Largest norm of the whole gradient; None: no limit."""
    clip_value: float | None = None
    schedule: Schedule = Schedule.cosine
    warmup_steps: int = 0
    final_fraction: float = 0.0
    """Lowest learning rate, as a fraction of the peak, for cosine, cosine_restarts, linear
    and polynomial."""
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
    """Averaging starts when a validation is worse than the best of those more than so many before
    it (NT-ASGD, arXiv:1708.02182)."""
    steps: int = 1000
    batch_size: int = 32
    """The effective batch, for any `micro_batch_size`."""
    micro_batch_size: int | None = None
    """Rows that are in memory at the same time; None = the whole batch."""
    statistics: Statistics = Statistics.batch

    def __post_init__(self) -> None:
        """Check the options; a ValueError says what to type instead."""
        for name, (suits, wanted) in RANGES.items():
            value = getattr(self, name)
            if value is not None and not suits(value):
                off = "; null switches it off" if name in NULLABLE else ""
                raise ValueError(f"{name} {wanted}: got {value}{off}")
        if self.warmup_steps > self.steps and self.schedule not in OPEN_ENDED:
            raise ValueError(
                f"warmup_steps must not exceed steps: got warmup_steps={self.warmup_steps}, "
                f"steps={self.steps}; type optim.warmup_steps={self.steps} or fewer, or raise steps"
            )
        micro = self.micro_batch_size
        if micro is not None and not 1 <= micro <= self.batch_size:
            raise ValueError(
                f"micro_batch_size must be from 1 to batch_size={self.batch_size}: got {micro}"
            )
        if self.schedule in IN_CYCLES and self.cycle_steps is None:
            raise ValueError(
                f"schedule={self.schedule} needs cycle_steps: got null; type optim.cycle_steps="
                f"{max(1, self.steps - self.warmup_steps)} for one cycle, or fewer for several"
            )
        for sentence in idle(NEEDS, vars(self), defaults(OptimConfig)).values():
            raise ValueError(sentence)


def _decays(ends: list[float]) -> bool:
    return len(ends) == 2 and all(0 <= end < 1 for end in ends)


Range: TypeAlias = tuple[Callable[[Any], bool], str]
POSITIVE: Range = (lambda value: value > 0, "must be positive")
AT_LEAST_0: Range = (lambda value: value >= 0, "must be at least 0")
AT_LEAST_1: Range = (lambda value: value >= 1, "must be at least 1")
FRACTION: Range = (lambda value: 0 <= value <= 1, "lies between 0 and 1")
SHARE: Range = (lambda value: 0 <= value < 1, "lies from 0 to below 1")
RANGES: Mapping[str, Range] = {
    "steps": AT_LEAST_0, "batch_size": AT_LEAST_1, "warmup_steps": AT_LEAST_0,
    "peak_learning_rate": POSITIVE, "epsilon": POSITIVE, "weight_decay": AT_LEAST_0,
    "betas": (_decays, "are two numbers from 0 to below 1"), "momentum": SHARE,
    "initial_accumulator": AT_LEAST_0, "update_clip": AT_LEAST_1, "least_scale": POSITIVE,
    "beta2_decay": (lambda value: value <= 0, "must be at most 0"),
    "clip": POSITIVE, "clip_value": POSITIVE, "tensor_clip": POSITIVE,
    "final_fraction": FRACTION, "cycle_steps": AT_LEAST_1, "cycle_multiplier": AT_LEAST_1,
    "power": POSITIVE, "start_divisor": AT_LEAST_1, "end_divisor": AT_LEAST_1,
    "momentum_range": (
        lambda ends: _decays(ends) and ends[0] <= ends[1],
        "are two ascending numbers from 0 to below 1, as [0.85, 0.95]",
    ),
    "plateau_factor": (lambda value: 0 < value < 1, "lies between 0 and 1, both excluded"),
    "plateau_patience": AT_LEAST_0, "plateau_threshold": AT_LEAST_0,
    "plateau_cooldown": AT_LEAST_0, "plateau_least": FRACTION,
    "label_smoothing": SHARE, "ema_decay": SHARE,
    "average_after": AT_LEAST_1,
}  # fmt: skip
"""Allowed values of an option; null is allowed if its type says so."""
NULLABLE = ("clip", "clip_value", "tensor_clip")
"""Limits of the gradient, which null removes."""

WITH_BETAS = (
    Optimiser.adamw, Optimiser.adam, Optimiser.radam, Optimiser.lion, Optimiser.lamb,
)  # fmt: skip
"""Optimisers with two decay rates, `betas`."""
IN_CYCLES = (Schedule.cosine_restarts, Schedule.lra_cosine)
OPEN_ENDED = (Schedule.rsqrt, Schedule.inverse_sqrt)
"""Schedules without a last step: published warm-ups may end after it."""

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
"""Which options need which others."""
