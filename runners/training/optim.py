"""What moves the weights: schedules, optimiser groups, clipping."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum, auto

import torch
from torch import nn

from conf.choices import by_name
from models.mixer import Tuned, Tuning


class Schedule(StrEnum):
    """How the learning rate moves over the run."""

    constant = auto()
    cosine = auto()
    linear = auto()
    one_cycle = auto()
    rsqrt = auto()


@by_name
@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """AdamW with decoupled weight decay, and a schedule.

    `peak_learning_rate` is the largest rate reached, but for `rsqrt`: there it is the base B of
    the Long Range Arena code, whose peak is B / sqrt(warmup_steps).
    """

    peak_learning_rate: float = 1e-3
    betas: list[float] = field(default_factory=lambda: [0.9, 0.98])
    epsilon: float = 1e-9
    weight_decay: float = 0.0
    clip: float | None = 1.0
    """Largest norm of the whole gradient; None leaves it alone."""
    schedule: Schedule = Schedule.cosine
    warmup_steps: int = 0
    final_fraction: float = 0.0
    """Learning rate at the end, as a fraction of the peak, for cosine and linear."""
    steps: int = 1000
    batch_size: int = 32
    """The effective batch, whatever `micro_batch_size` is."""
    micro_batch_size: int | None = None
    """Rows that are in memory at once; None = the whole batch."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense, each with the way out."""
        for name, least in (("steps", 1), ("batch_size", 1), ("warmup_steps", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}: got {getattr(self, name)}")
        if self.warmup_steps > self.steps and self.schedule is not Schedule.rsqrt:
            raise ValueError(
                f"warmup_steps must not exceed steps: got warmup_steps={self.warmup_steps}, "
                f"steps={self.steps}; type optim.warmup_steps={self.steps} or fewer, or raise steps"
            )
        if not self.weight_decay >= 0:
            raise ValueError(f"weight_decay must be at least 0: got {self.weight_decay}")
        for name in ("peak_learning_rate", "epsilon"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive: got {getattr(self, name)}")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip must be positive: got {self.clip}; null switches it off")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas are two numbers from 0 to below 1: got {self.betas}")
        if not 0 <= self.final_fraction <= 1:
            raise ValueError(f"final_fraction lies between 0 and 1: got {self.final_fraction}")
        micro = self.micro_batch_size
        if micro is not None and not 1 <= micro <= self.batch_size:
            raise ValueError(
                f"micro_batch_size lies between 1 and batch_size={self.batch_size}: got {micro}"
            )


def learning_rate(config: OptimConfig, step: int) -> float:
    """Return the learning rate of update number `step`, counted from 0.

    With warm-up W, every schedule but `rsqrt` and `one_cycle` rises linearly over the first W
    updates, reaching the peak at update W - 1. `rsqrt` follows the Long Range Arena code:
    B * min(1, s / W) / sqrt(max(s, W)), which is 0 at update 0.
    """
    peak, warmup, last = config.peak_learning_rate, config.warmup_steps, config.steps - 1
    if config.schedule is Schedule.rsqrt:
        if warmup == 0:
            return peak / math.sqrt(max(step, 1))
        return peak * min(1.0, step / warmup) / math.sqrt(max(step, warmup))
    if config.schedule is Schedule.one_cycle:
        return _one_cycle(config, step)
    if step < warmup:
        return peak * (step + 1) / warmup
    done = min(1.0, (step - warmup) / max(1, last - warmup))
    shape = {
        Schedule.constant: 1.0,
        Schedule.cosine: 0.5 * (1 + math.cos(math.pi * done)),
        Schedule.linear: 1 - done,
    }[config.schedule]
    low = 0.0 if config.schedule is Schedule.constant else config.final_fraction
    return peak * (low + (1 - low) * shape)


def _one_cycle(config: OptimConfig, step: int) -> float:
    """Return Smith's one cycle with straight lines and PyTorch's default ends.

    From peak / 25 up to the peak over the warm-up, then down to peak / 250,000. The momentum is not
    cycled.
    """
    peak, warmup, last = config.peak_learning_rate, config.warmup_steps, config.steps - 1
    low, end = peak / 25, peak / 250_000
    if step < warmup:
        return low + (peak - low) * step / warmup
    return peak + (end - peak) * min(1.0, (step - warmup) / max(1, last - warmup))


def tunings(model: nn.Module) -> Iterator[tuple[nn.Parameter, Tuning]]:
    """Yield every trainable parameter once, with its special treatment."""
    special: dict[int, Tuning] = {}
    for name, module in model.named_modules():
        own = dict(module.named_parameters())
        if isinstance(module, Tuned):
            for key, tuning in module.tuning().items():
                if key not in own:
                    raise ValueError(
                        f"{name or type(module).__name__}.tuning() names {key!r}, which is none "
                        f"of its parameters: {', '.join(sorted(own))}"
                    )
                special[id(own[key])] = tuning
    for parameter in model.parameters():
        if parameter.requires_grad:
            yield parameter, special.get(id(parameter), Tuning())


def build_optimiser(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """Return AdamW over groups of equal treatment; `scale` in a group multiplies the schedule."""
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter, tuning in tunings(model):
        decay = config.weight_decay if tuning.weight_decay is None else tuning.weight_decay
        groups.setdefault((tuning.learning_rate_scale, decay), []).append(parameter)
    return torch.optim.AdamW(
        [
            {"params": parameters, "weight_decay": decay, "scale": scale}
            for (scale, decay), parameters in groups.items()
        ],
        lr=config.peak_learning_rate,
        betas=(config.betas[0], config.betas[1]),
        eps=config.epsilon,
        fused=True,
    )


def set_learning_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Set the rate of every group to `rate` times its scale."""
    for group in optimiser.param_groups:
        group["lr"] = rate * group["scale"]


def clip_gradients(model: nn.Module, config: OptimConfig, own: dict[nn.Parameter, float]) -> None:
    """Clip each parameter of special treatment by itself, then the whole gradient."""
    for parameter, limit in own.items():
        nn.utils.clip_grad_norm_([parameter], limit)
    if config.clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), config.clip)


def own_clips(model: nn.Module) -> dict[nn.Parameter, float]:
    """Return the parameters that are clipped by themselves, with their limits."""
    return {p: tuning.clip for p, tuning in tunings(model) if tuning.clip is not None}
