"""The options of all runners that measure time: how many calls are timed."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from lra.conf.bounds import check_least, check_positive
from lra.conf.choices import by_name
from lra.runners.measurement.measure import Call, warm_up

REPEAT_LIMIT_S = 10.0
"""Default of `repeat_limit_s`: seconds for repeating disturbed samples of one run."""


@by_name
@dataclass(frozen=True, kw_only=True)
class Timing:
    """Numbers of calls for warm-up and of timed samples."""

    incidental: ClassVar[frozenset[str]] = frozenset({"repeat_limit_s"})
    """Options that change no number, so they are not part of a result's identity."""

    warmup_steps: int = 2
    timed_steps: int = 10
    long_step_s: float = 0.5
    """If one call takes more seconds than this, only `long_timed_steps` samples are timed."""
    long_timed_steps: int = 5
    repeat_limit_s: float = REPEAT_LIMIT_S
    """Seconds for repeating samples that other processes disturbed; 0: no sample is repeated."""

    def __post_init__(self) -> None:
        """Check the options; a median needs at least three samples. Raises ValueError."""
        check_least(3, timed_steps=self.timed_steps, long_timed_steps=self.long_timed_steps)
        check_least(1, warmup_steps=self.warmup_steps)
        check_positive(long_step_s=self.long_step_s)
        check_repeats(self.repeat_limit_s)

    def warm(self, call: Call, device: torch.device) -> float:
        """Repeat a call until its time is stable (a long call once); return its last seconds."""
        return warm_up(call, device, least=self.warmup_steps, long_s=self.long_step_s)

    def rounds(self, slowest: float) -> int:
        """Return how many samples are taken if the slowest call takes `slowest` seconds."""
        return self.timed_steps if slowest <= self.long_step_s else self.long_timed_steps


def check_limit(step_limit_s: float | None) -> None:
    """Raise ValueError if a time limit is not above 0; None is no limit."""
    if step_limit_s is not None and not step_limit_s > 0:
        raise ValueError(f"step_limit_s must be positive: got {step_limit_s}; null sets no limit")


def check_repeats(repeat_limit_s: float) -> None:
    """Raise ValueError if the time limit of repeats is negative or infinite."""
    if not 0 <= repeat_limit_s < math.inf:
        raise ValueError(
            f"repeat_limit_s: got {repeat_limit_s}; wanted 0 or more seconds (0: no sample is "
            "repeated)"
        )
