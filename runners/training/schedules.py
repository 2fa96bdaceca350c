"""Learning rate and momentum over a run: functions of the update, and one of the scores.

Updates are counted from 0. With warm-up W, a schedule rises linearly over the first W updates and
reaches its peak at update W - 1; `one_cycle`, `rsqrt` and `lra_cosine` have the rise of their
sources, which reaches it at update W.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from lra.runners.training.optim import Anneal, OptimConfig, Schedule


def learning_rate(config: OptimConfig, step: int, reduction: float = 1.0) -> float:
    """Return the learning rate of update number `step`, counted from 0.

    Args:
        config: Which schedule, and its numbers.
        step: Of the update.
        reduction: What `plateau` multiplies the rate by: see `Plateau`.
    """
    if config.schedule in _WITH_RISE:
        return _WITH_RISE[config.schedule](config, step)
    peak, warmup = config.peak_learning_rate, config.warmup_steps
    if step < warmup:
        return peak * (step + 1) / warmup
    if config.schedule is Schedule.plateau:
        return peak * max(config.plateau_least, reduction)
    low = 0.0 if config.schedule is Schedule.constant else config.final_fraction
    return peak * (low + (1 - low) * _fall(config, step - warmup))


def _fall(config: OptimConfig, update: int) -> float:
    """Return what is left of the peak, from 1 at the warm-up's end."""
    done = min(1.0, update / max(1, config.steps - 1 - config.warmup_steps))
    match config.schedule:
        case Schedule.cosine:
            return _cosine(done)
        case Schedule.cosine_restarts:
            return _cosine(_within_cycle(config, update))
        case Schedule.linear:
            return 1 - done
        case Schedule.polynomial:
            return float((1 - done) ** config.power)
    return 1.0


def _rsqrt(config: OptimConfig, step: int) -> float:
    """Return B * min(1, s / W) / sqrt(max(s, W)), which is 0 at update 0.

    Source: the Long Range Arena code.
    """
    base, warmup = config.peak_learning_rate, config.warmup_steps
    if warmup == 0:
        return base / math.sqrt(max(step, 1))
    return base * min(1.0, step / warmup) / math.sqrt(max(step, warmup))


def _lra_cosine(config: OptimConfig, step: int) -> float:
    """Return B * min(1, s / W) * (1 + cos(pi * (p mod 1))) / 2, p = max(0, s - W) / cycle_steps.

    Source: the Long Range Arena code.
    """
    base, warmup = config.peak_learning_rate, config.warmup_steps
    rise = min(1.0, step / warmup) if warmup else 1.0
    return base * rise * _cosine(max(0, step - warmup) / _cycle_steps(config) % 1)


def _inverse_sqrt(config: OptimConfig, step: int) -> float:
    """Return peak * min(u / W, sqrt(W / u)) at update u, counted from 1.

    Source: Vaswani et al. 2017, section 5.3, whose peak is (width * W) ** -0.5. In fairseq, u
    counts from 0, so that the first update has its initial rate.
    """
    update, warmup = step + 1, max(1, config.warmup_steps)
    return config.peak_learning_rate * min(update / warmup, math.sqrt(warmup / update))


def _one_cycle(config: OptimConfig, step: int) -> float:
    """Return Smith's one cycle between three rates."""
    peak = config.peak_learning_rate
    first = peak / config.start_divisor
    return _cycled(config, step, first, peak, peak / (config.start_divisor * config.end_divisor))


_WITH_RISE: Mapping[Schedule, Callable[[OptimConfig, int], float]] = {
    Schedule.rsqrt: _rsqrt,
    Schedule.lra_cosine: _lra_cosine,
    Schedule.inverse_sqrt: _inverse_sqrt,
    Schedule.one_cycle: _one_cycle,
}
"""Schedules whose formula includes the rise of the rate."""


def momentum(config: OptimConfig, step: int) -> float | None:
    """Return momentum, or the first beta, of update number `step`; None if it is constant."""
    if config.momentum_range is None:
        return None
    low, high = config.momentum_range
    return _cycled(config, step, high, low, high)


def _cycled(config: OptimConfig, step: int, begin: float, middle: float, end: float) -> float:
    """Return what one_cycle makes of three values: `middle` is reached at update `warmup_steps`."""
    warmup, last = config.warmup_steps, config.steps - 1
    straight = config.anneal is Anneal.linear
    if step < warmup:
        if straight:
            return begin + (middle - begin) * step / warmup
        return middle + (begin - middle) * _cosine(step / warmup)
    done = min(1.0, (step - warmup) / max(1, last - warmup))
    if straight:
        return middle + (end - middle) * done
    return end + (middle - end) * _cosine(done)


def _cosine(done: float) -> float:
    """Return half a cosine, from 1 at 0 to 0 at 1."""
    return 0.5 * (1 + math.cos(math.pi * done))


def _cycle_steps(config: OptimConfig) -> int:
    assert config.cycle_steps is not None, "refused without"
    return config.cycle_steps


def _within_cycle(config: OptimConfig, update: int) -> float:
    """Return how far an update is in its cycle, from 0 to below 1."""
    length = _cycle_steps(config)
    if config.cycle_multiplier == 1:
        return update % length / length
    while update >= length:
        update -= length
        length *= config.cycle_multiplier
    return update / length


class Plateau:
    """Lowers the rate after more than `plateau_patience` validations in a row without improvement.

    As PyTorch's ReduceLROnPlateau with a relative threshold, which is of the best score's size so
    that scores below 0 are compared alike.

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
            self.cooling, self.unimproved = self.cooling - 1, 0
        if self.unimproved > config.plateau_patience:
            self.reduction *= config.plateau_factor
            self.cooling, self.unimproved = config.plateau_cooldown, 0

    def state(self) -> dict[str, Any]:
        """Return its state for a checkpoint."""
        return {name: getattr(self, name) for name in _REMEMBERED}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from a state."""
        for name in _REMEMBERED:
            setattr(self, name, state[name])


_REMEMBERED = ("reduction", "best", "unimproved", "cooling")
