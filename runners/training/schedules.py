"""Learning rate and momentum during training: functions of the number of the update.

Updates are counted from 0. With W warm-up steps, the rate rises linearly and reaches its peak at
update W - 1. For `one_cycle`, `rsqrt` and `lra_cosine` it reaches the peak at update W, as in their
sources. `plateau` depends on validation scores, too.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from lra.runners.training.optim import Anneal, OptimConfig, Schedule


def learning_rate(config: OptimConfig, step: int, reduction: float = 1.0) -> float:
    """Return the learning rate of update number `step`, counted from 0.

    Args:
        config: The schedule and its options.
        step: Number of the update.
        reduction: Factor of the rate under `plateau`: see `Plateau`.
    """
    if config.schedule in _WITH_RISE:
        return _WITH_RISE[config.schedule](config, step)
    peak, warmup = config.peak_learning_rate, config.warmup_steps
    if step < warmup:
        return peak * (step + 1) / warmup
    if config.schedule is Schedule.plateau:
        return peak * max(config.plateau_least, reduction)
    low = 0.0 if config.schedule is Schedule.constant else config.final_fraction
    return peak * (low + (1 - low) * _falling_factor(config, step - warmup))


def _falling_factor(config: OptimConfig, update: int) -> float:
    """Return the factor of the peak at an update after warm-up; it falls from 1 at update 0."""
    progress = min(1.0, update / max(1, config.steps - 1 - config.warmup_steps))
    match config.schedule:
        case Schedule.cosine:
            return _cosine(progress)
        case Schedule.cosine_restarts:
            return _cosine(_progress_in_cycle(config, update))
        case Schedule.linear:
            return 1 - progress
        case Schedule.polynomial:
            return float((1 - progress) ** config.power)
    return 1.0


def _rsqrt_rate(config: OptimConfig, step: int) -> float:
    """Return B * min(1, s / W) / sqrt(max(s, W)) at step s, with base B and W warm-up steps.

    Source: the Long Range Arena code.
    """
    base, warmup = config.peak_learning_rate, config.warmup_steps
    if warmup == 0:
        return base / math.sqrt(max(step, 1))
    return base * min(1.0, step / warmup) / math.sqrt(max(step, warmup))


def _lra_cosine_rate(config: OptimConfig, step: int) -> float:
    """Return B * min(1, s / W) * (1 + cos(pi * (p mod 1))) / 2, p = max(0, s - W) / cycle_steps.

    s is the step, B the base and W the number of warm-up steps. Source: the Long Range Arena code.
    """
    base, warmup = config.peak_learning_rate, config.warmup_steps
    rise = min(1.0, step / warmup) if warmup else 1.0
    return base * rise * _cosine(max(0, step - warmup) / _cycle_steps(config) % 1)


def _inverse_sqrt_rate(config: OptimConfig, step: int) -> float:
    """Return peak * min(u / W, sqrt(W / u)) at update u, counted from 1, with W warm-up steps.

    Source: Vaswani et al. 2017, section 5.3, where the peak is (width * W) ** -0.5. In fairseq, u
    is counted from 0, so the first update has the initial rate.
    """
    update, warmup = step + 1, max(1, config.warmup_steps)
    return config.peak_learning_rate * min(update / warmup, math.sqrt(warmup / update))


def _one_cycle_rate(config: OptimConfig, step: int) -> float:
    """Return the rate of one cycle: from peak / start_divisor to the peak, then to the end."""
    peak = config.peak_learning_rate
    first = peak / config.start_divisor
    return _follow_cycle(
        config, step, first, peak, peak / (config.start_divisor * config.end_divisor)
    )


_WITH_RISE: Mapping[Schedule, Callable[[OptimConfig, int], float]] = {
    Schedule.rsqrt: _rsqrt_rate,
    Schedule.lra_cosine: _lra_cosine_rate,
    Schedule.inverse_sqrt: _inverse_sqrt_rate,
    Schedule.one_cycle: _one_cycle_rate,
}
"""Schedules that have the rise of the rate in their formula."""


def momentum(config: OptimConfig, step: int) -> float | None:
    """Return the momentum (or the first beta) of update number `step`; None if it is constant."""
    if config.momentum_range is None:
        return None
    low, high = config.momentum_range
    return _follow_cycle(config, step, high, low, high)


def _follow_cycle(config: OptimConfig, step: int, begin: float, middle: float, end: float) -> float:
    """Return a value that goes from `begin` to `middle` in warm-up, and to `end` at the last step.

    It follows a straight line or half a cosine, as `config.anneal` says.
    """
    warmup, last = config.warmup_steps, config.steps - 1
    is_linear = config.anneal is Anneal.linear
    if step < warmup:
        if is_linear:
            return begin + (middle - begin) * step / warmup
        return middle + (begin - middle) * _cosine(step / warmup)
    progress = min(1.0, (step - warmup) / max(1, last - warmup))
    if is_linear:
        return middle + (end - middle) * progress
    return end + (middle - end) * _cosine(progress)


def _cosine(progress: float) -> float:
    """Return half a cosine: 1 at progress 0, and 0 at progress 1."""
    return 0.5 * (1 + math.cos(math.pi * progress))


def _cycle_steps(config: OptimConfig) -> int:
    assert config.cycle_steps is not None, "OptimConfig has checked that cycle_steps is set"
    return config.cycle_steps


def _progress_in_cycle(config: OptimConfig, update: int) -> float:
    """Return the progress of an update in its cycle, from 0 to below 1."""
    length = _cycle_steps(config)
    if config.cycle_multiplier == 1:
        return update % length / length
    while update >= length:
        update -= length
        length *= config.cycle_multiplier
    return update / length


class Plateau:
    """Lowers the rate after more than `plateau_patience` validations in a row without improvement.

    This is PyTorch's ReduceLROnPlateau with a relative threshold. The threshold is relative to the
    absolute value of the best score, so that it works for negative scores, too.

    Args:
        config: Factor, patience, threshold and cool-down.
    """

    def __init__(self, config: OptimConfig) -> None:
        self.config = config
        self.reduction = 1.0
        self.best: float | None = None
        self.unimproved = self.cooling = 0

    def see(self, score: float) -> None:
        """Record the score of a validation; higher is better."""
        best, config = self.best, self.config
        if best is None or score > best + abs(best) * config.plateau_threshold:
            self.best, self.unimproved = score, 0
        else:
            self.unimproved += 1
        if self.cooling:
            self.cooling, self.unimproved = self.cooling - 1, 0  # too early to count
        if self.unimproved > config.plateau_patience:
            self.reduction *= config.plateau_factor
            self.cooling, self.unimproved = config.plateau_cooldown, 0

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {name: getattr(self, name) for name in _REMEMBERED}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state` returned in an earlier process."""
        for name in _REMEMBERED:
            setattr(self, name, state[name])


_REMEMBERED = ("reduction", "best", "unimproved", "cooling")
