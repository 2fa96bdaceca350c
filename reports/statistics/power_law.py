"""Growth with length, and where one model overtakes another: exponents and crossovers.

What its interval does not determine is not printed as a number.
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
"""Half the widest interval of an exponent that is printed: it distinguishes n, n^1.5 and n^2."""
FEWEST = 3
"""Lengths of a fit: a line through two leaves no residuals, and so no interval."""
WIDEST = 4.0
"""Largest ratio of the ends of a crossover's interval: two doublings of the length."""
UNRESOLVED = "too uncertain"


def bounds(low: float, high: float) -> str:
    """Return an interval of exponents as text, without the sign of a rounded zero."""
    return f"[{round(low, 2) + 0.0:.2f}, {round(high, 2) + 0.0:.2f}]"


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """A line through log value against log length."""

    exponent: float
    log_factor: float
    """Natural logarithm of the fitted value at length 1."""
    residuals: Interval | None
    """None with two points: a line through two points leaves none."""
    noise: Interval | None
    """None without repeated samples."""
    lengths: tuple[int, ...]

    @property
    def interval(self) -> Interval | None:
        """The interval to print: the wider of the two, since each source alone understates it."""
        intervals = [i for i in (self.residuals, self.noise) if i is not None]
        return max(intervals, key=lambda i: i.high - i.low, default=None)

    @property
    def resolved(self) -> bool:
        """Whether the exponent is certain enough to be printed."""
        i = self.interval
        return len(self.lengths) >= FEWEST and i is not None and i.high - i.low <= 2 * RESOLVED

    def __str__(self) -> str:
        """Return the exponent as tables and legends print it, or that there is none."""
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
    """Where a ratio falls below 1 for good."""

    below = auto()
    """It is below 1 from the shortest length measured."""
    within = auto()
    never = auto()
    """It is not below 1 at the longest length measured."""
    unknown = auto()
    """No length was measured."""


@dataclass(frozen=True, slots=True)
class Crossover:
    """The length from which a ratio stays below 1, as far as it was measured."""

    reach: Reach
    length: float | None = None
    """Interpolated between the two lengths around it; only for `Reach.within`."""
    interval: Interval | None = None
    """Of the length; 0 where it lies below all lengths, infinite where it is never reached."""
    shortest: int | None = None
    longest: int | None = None

    @property
    def resolved(self) -> bool:
        """Whether timing noise leaves a definite answer."""
        i = self.interval
        if i is None:
            return False
        if self.reach is Reach.never:
            return i.low == math.inf
        low = i.low or self.shortest
        return low is not None and i.high <= WIDEST * low

    @property
    def place(self) -> float:
        """The length; 0 where it lies below all lengths, infinite where it is never reached."""
        return self.length or (0.0 if self.reach is Reach.below else math.inf)

    def __str__(self) -> str:
        """Return the answer as a table prints it."""
        if self.reach is Reach.unknown:
            return "unknown"
        if not self.resolved:
            return f"{UNRESOLVED} {self._bounds() or '(no repeated samples)'}"
        if self.reach is Reach.never:
            return f"not up to {self.longest:,}"
        if self.interval is not None and self.interval.low == 0.0:
            return f"≤ {max(self.shortest or 0, self.interval.high):,.0f}"
        return f"{self.length:,.0f} {self._bounds()}"

    def _bounds(self) -> str:
        if self.interval is None:
            return ""
        low, high = self.interval.low, self.interval.high
        return f"[{self._end(low)}, {self._end(high)}]"

    def _end(self, length: float) -> str:
        if length == 0.0:
            return f"≤ {self.shortest:,}"
        return f"{length:,.0f}" if math.isfinite(length) else "∞"


def _checked(lengths: Sequence[float], values: Sequence[float], least: int) -> tuple[Array, Array]:
    n, y = np.asarray(lengths, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if n.size != y.size or n.size < least or np.any(np.diff(n) <= 0) or n[0] <= 0 or np.any(y <= 0):
        raise ValueError(
            f"need >= {least} rising lengths with one positive value each: "
            f"got lengths={list(lengths)}, values={list(values)}"
        )
    return _logs(n), _logs(y)


def _logs(values: Array) -> Array:
    """Return logarithms by the C library: NumPy's have another last digit on another processor."""
    return np.array([math.log(value) for value in values.tolist()])


def _dot(one: Array, other: Array) -> float:
    """Return the sum of products, rounded once: a BLAS adds up as its processor likes best."""
    return math.fsum((one * other).tolist())


def fit_exponent(
    lengths: Sequence[int], values: Sequence[float], samples: Sequence[ArrayLike] | None = None
) -> PowerLaw:
    """Fit log value = log factor + exponent x log length by least squares.

    Args:
        lengths: rising, at least two.
        values: one positive value per length, e.g. the median time.
        samples: raw samples behind each value; they give the interval from timing noise.

    Raises:
        ValueError: too few points, lengths that do not rise, values that are not positive.
    """
    x, y = _checked(lengths, values, 2)
    centred = x - x.mean()
    spread = _dot(centred, centred)
    exponent = _dot(centred, y) / spread
    intercept = float(y.mean() - exponent * x.mean())
    residuals: Interval | None = None
    if x.size > 2:
        rest = y - intercept - exponent * x
        error = math.sqrt(_dot(rest, rest) / (x.size - 2) / spread)
        half = t_quantile(UPPER, x.size - 2) * error
        residuals = Interval(exponent - half, exponent + half, Uncertainty.residuals)
    noise: Interval | None = None
    if samples is not None and enough(samples):
        noise = resample(samples, lambda m: (np.log(m) * centred).sum(axis=-1) / spread)
    return PowerLaw(exponent, intercept, residuals, noise, tuple(int(n) for n in lengths))


def _crossing(x: Array, log_ratio: Array) -> Array:
    """Return exp of the crossing for rows of log ratios: 0 from the start, infinity for never."""
    above = log_ratio >= 0
    last = above.shape[1] - 1 - np.argmax(above[:, ::-1], axis=1)
    crossings = np.full(above.shape[0], np.inf)
    crossings[~above.any(axis=1)] = 0.0
    rows = np.flatnonzero(above.any(axis=1) & (last < above.shape[1] - 1))
    i = last[rows]
    y0, y1 = log_ratio[rows, i], log_ratio[rows, i + 1]
    crossings[rows] = np.exp(x[i] + (x[i + 1] - x[i]) * y0 / (y0 - y1))
    return crossings


def crossover(
    lengths: Sequence[int], ratios: Sequence[float], samples: Sequence[ArrayLike] | None = None
) -> Crossover:
    """Find the length from which the ratio stays below 1, straight lines in log-log between.

    Args:
        lengths: rising; may be empty.
        ratios: model / reference at each length.
        samples: paired ratios behind each; they give the interval from timing noise.

    Raises:
        ValueError: lengths that do not rise, ratios that are not positive.
    """
    if not len(lengths):
        return Crossover(Reach.unknown)
    x, y = _checked(lengths, ratios, 1)
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
