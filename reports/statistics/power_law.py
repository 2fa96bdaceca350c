"""Fit exponents of growth with length, and find the length where one model overtakes another.

A number with a very wide interval is printed as "too uncertain" with the interval.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum, auto

import numpy as np
from numpy.typing import ArrayLike

from lra.reports.statistics.intervals import (
    UPPER,
    Array,
    Interval,
    Uncertainty,
    enough,
    resample,
    t_quantile,
)

RESOLVED = 0.25
"""Half the width of the widest interval of a printed exponent: it separates n, n^1.5 and n^2."""
FEWEST = 3
"""The fewest lengths of a fit. Two lengths leave no residuals, and so no interval."""
WIDEST = 4.0
"""The largest ratio of the ends of the interval of a printed crossover: two doublings."""
UNRESOLVED = "too uncertain"


def bounds(low: float, high: float) -> str:
    """Return an interval of exponents as text; adding 0.0 turns -0.00 into 0.00."""
    return f"[{round(low, 2) + 0.0:.2f}, {round(high, 2) + 0.0:.2f}]"


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """A fitted law: log value = log_factor + exponent x log length."""

    exponent: float
    log_factor: float
    """The natural logarithm of the fitted value at length 1."""
    residuals: Interval | None
    """The interval of the exponent from residuals; None with two points."""
    noise: Interval | None
    """The interval of the exponent from timing noise; None without repeated samples."""
    lengths: tuple[int, ...]

    @property
    def interval(self) -> Interval | None:
        """The wider of the two intervals, because each source alone understates the uncertainty."""
        intervals = [i for i in (self.residuals, self.noise) if i is not None]
        return max(intervals, key=lambda i: i.high - i.low, default=None)

    @property
    def resolved(self) -> bool:
        """Whether the exponent is certain enough to be printed."""
        i = self.interval
        return len(self.lengths) >= FEWEST and i is not None and i.high - i.low <= 2 * RESOLVED

    def __str__(self) -> str:
        """Return the exponent with its interval as printed, or why it is too uncertain."""
        if len(self.lengths) < FEWEST:
            return f"{UNRESOLVED} ({len(self.lengths)} lengths)"
        if self.interval is None:
            return f"{UNRESOLVED} (no interval)"
        interval = bounds(self.interval.low, self.interval.high)
        if not self.resolved:
            return f"{UNRESOLVED} {interval}"
        return f"{round(self.exponent, 2) + 0.0:.2f} {interval}"

    def value(self, length: float) -> float:
        """Return the fitted value at `length`."""
        return math.exp(self.log_factor + self.exponent * math.log(length))


class Reach(StrEnum):
    """Where a ratio falls below 1 and stays there."""

    below = auto()
    """It is below 1 at all measured lengths."""
    within = auto()
    """It falls below 1 between two measured lengths."""
    never = auto()
    """It is at least 1 at the longest measured length."""
    unknown = auto()
    """No length was measured."""


@dataclass(frozen=True, slots=True)
class Crossover:
    """The length from which a ratio is below 1 at all longer measured lengths."""

    reach: Reach
    length: float | None = None
    """The length, interpolated between two measured ones; None unless `Reach.within`."""
    interval: Interval | None = None
    """The interval of the length. An end is 0 for `Reach.below` and infinite for `Reach.never`."""
    shortest: int | None = None
    longest: int | None = None

    @property
    def resolved(self) -> bool:
        """Whether the interval is narrow enough for the length to be printed."""
        i = self.interval
        if i is None:
            return False
        if self.reach is Reach.never:
            return i.low == math.inf
        low = i.low or self.shortest  # 0: the true end is at or below the shortest length
        return low is not None and i.high <= WIDEST * low

    @property
    def place(self) -> float:
        """The length; 0 for `Reach.below`, and infinite for `Reach.never`."""
        return self.length or (0.0 if self.reach is Reach.below else math.inf)

    def __str__(self) -> str:
        """Return the length with its interval as a table prints it."""
        if self.reach is Reach.unknown:
            return "unknown"
        if not self.resolved:
            return f"{UNRESOLVED} {self._interval_text() or '(no repeated samples)'}"
        if self.reach is Reach.never:
            return f"not up to {self.longest:,}"
        if self.interval is not None and self.interval.low == 0.0:
            return f"≤ {max(self.shortest or 0, self.interval.high):,.0f}"
        return f"{self.length:,.0f} {self._interval_text()}"

    def _interval_text(self) -> str:
        """Return the interval as a table prints it; "" if there is none."""
        if self.interval is None:
            return ""
        low, high = self.interval.low, self.interval.high
        return f"[{self._end_text(low)}, {self._end_text(high)}]"

    def _end_text(self, length: float) -> str:
        """Return one end of the interval; 0 is printed as the shortest measured length."""
        if length == 0.0:
            return f"≤ {self.shortest:,}"
        return f"{length:,.0f}" if math.isfinite(length) else "∞"


def _logarithms(
    lengths: Sequence[float], values: Sequence[float], least: int
) -> tuple[Array, Array]:
    """Return log lengths and log values; raise ValueError unless there are at least `least`."""
    n, y = np.asarray(lengths, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if n.size != y.size or n.size < least or np.any(np.diff(n) <= 0) or n[0] <= 0 or np.any(y <= 0):
        raise ValueError(
            f"there must be at least {least} rising lengths, each with one positive value: got "
            f"lengths={list(lengths)}, values={list(values)}"
        )
    return _logs(n), _logs(y)


def _logs(values: Array) -> Array:
    """Return logarithms by `math.log`, because the last digit of NumPy's depends on the CPU."""
    return np.array([math.log(value) for value in values.tolist()])


def _dot(one: Array, other: Array) -> float:
    """Return the sum of products by `fsum`, because the rounding of NumPy's depends on the CPU."""
    return math.fsum((one * other).tolist())


def fit_exponent(
    lengths: Sequence[int], values: Sequence[float], samples: Sequence[ArrayLike] | None = None
) -> PowerLaw:
    """Return the fit of log value = log factor + exponent x log length by least squares.

    Args:
        lengths: at least two rising lengths.
        values: a positive value for each length, for example the median time.
        samples: the samples of each value, for the interval from timing noise; None for none.

    Raises:
        ValueError: there are too few points, lengths that do not rise, or values up to 0.
    """
    x, y = _logarithms(lengths, values, 2)
    centred = x - x.mean()
    spread = _dot(centred, centred)
    exponent = _dot(centred, y) / spread
    intercept = float(y.mean() - exponent * x.mean())
    residuals: Interval | None = None
    if x.size > 2:
        distances = y - intercept - exponent * x
        error = math.sqrt(_dot(distances, distances) / (x.size - 2) / spread)
        half = t_quantile(UPPER, x.size - 2) * error
        residuals = Interval(exponent - half, exponent + half, Uncertainty.residuals)
    noise: Interval | None = None
    if samples is not None and enough(samples):
        noise = resample(samples, lambda m: (np.log(m) * centred).sum(axis=-1) / spread)
    return PowerLaw(exponent, intercept, residuals, noise, tuple(int(n) for n in lengths))


def _crossing(x: Array, log_ratio: Array) -> Array:
    """Return the length at which each row of log ratios falls below 0 and stays there.

    It is 0 for a row that is always below 0, and infinite for a row that ends at or above 0.

    `x` are log lengths (lengths), and `log_ratio` has shape (rows, lengths).
    """
    above = log_ratio >= 0
    # `argmax` finds the last True of each row in the reversed row.
    last_above = above.shape[1] - 1 - np.argmax(above[:, ::-1], axis=1)
    crossings = np.full(above.shape[0], np.inf)
    crossings[~above.any(axis=1)] = 0.0
    rows = np.flatnonzero(above.any(axis=1) & (last_above < above.shape[1] - 1))
    i = last_above[rows]
    y0, y1 = log_ratio[rows, i], log_ratio[rows, i + 1]
    crossings[rows] = np.exp(x[i] + (x[i + 1] - x[i]) * y0 / (y0 - y1))
    return crossings


def crossover(
    lengths: Sequence[int], ratios: Sequence[float], samples: Sequence[ArrayLike] | None = None
) -> Crossover:
    """Return the length from which the ratio is below 1, by straight lines on log-log axes.

    Args:
        lengths: rising lengths; without any, the result is `Reach.unknown`.
        ratios: the time of the model divided by that of the reference, at each length.
        samples: the paired ratios at each length, for the interval from timing noise; None for no
            interval.

    Raises:
        ValueError: lengths do not rise, or ratios are not positive.
    """
    if not len(lengths):
        return Crossover(Reach.unknown)
    x, y = _logarithms(lengths, ratios, 1)
    shortest, longest = int(lengths[0]), int(lengths[-1])
    length = float(_crossing(x, y[None])[0])
    interval: Interval | None = None
    if samples is not None and enough(samples):
        interval = resample(samples, lambda m: _crossing(x, np.log(m)))
    if length == 0.0:
        return Crossover(Reach.below, None, interval, shortest, longest)
    if not math.isfinite(length):
        return Crossover(Reach.never, None, interval, shortest, longest)
    return Crossover(Reach.within, length, interval, shortest, longest)
