"""How many calls are timed: what every runner that measures time asks for."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from lra.conf.bounds import check_least, check_positive
from lra.conf.choices import by_name
from lra.runners.measurement.measure import Call, warm_up

REPEAT_LIMIT_S = 10.0
"""Seconds for repeating disturbed samples of one cell, unless asked otherwise."""


@by_name
@dataclass(frozen=True, kw_only=True)
class Timing:
    """Warm-up and samples."""

    incidental: ClassVar[frozenset[str]] = frozenset({"repeat_limit_s"})
    """Options that change no number: not part of a result's identity."""

    warmup_steps: int = 2
    timed_steps: int = 10
    long_step_s: float = 0.5
    """Where one call takes longer, `long_timed_steps` samples do."""
    long_timed_steps: int = 5
    repeat_limit_s: float = REPEAT_LIMIT_S
    """Wall clock for repeating samples that the machine disturbed; 0 repeats none."""

    def __post_init__(self) -> None:
        """Refuse numbers of samples that are too few for a median."""
        check_least(3, timed_steps=self.timed_steps, long_timed_steps=self.long_timed_steps)
        check_least(1, warmup_steps=self.warmup_steps)
        check_positive(long_step_s=self.long_step_s)
        check_repeats(self.repeat_limit_s)

    def warm(self, call: Call, device: torch.device) -> float:
        """Call until the time is stable, once if it is long; return the seconds of the last."""
        return warm_up(call, device, least=self.warmup_steps, long_s=self.long_step_s)

    def rounds(self, slowest: float) -> int:
        """Return how many samples of calls of up to `slowest` seconds are taken."""
        return self.timed_steps if slowest <= self.long_step_s else self.long_timed_steps


def check_limit(step_limit_s: float | None) -> None:
    """Refuse a limit of no time. Raises ValueError."""
    if step_limit_s is not None and not step_limit_s > 0:
        raise ValueError(f"step_limit_s must be positive: got {step_limit_s}; null sets no limit")


def check_repeats(repeat_limit_s: float) -> None:
    """Refuse a negative budget, and one without end. Raises ValueError."""
    if not 0 <= repeat_limit_s < math.inf:
        raise ValueError(
            f"repeat_limit_s: got {repeat_limit_s}; wanted seconds, 0 or more; 0 repeats no sample"
        )
