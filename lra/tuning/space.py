"""Searched options with their ranges in Hydra's syntax, and points of the unit cube as values."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, Sweep
from hydra.errors import HydraException

from lra.composition.combinations import is_range, value_count
from lra.conf.short_values import short
from lra.errors import ConfigError

RANGES = "interval(a,b), tag(log, interval(a,b)), choice(a,b) or range(a,b,step)"
MOST = 10_000
"""An option has at most so many listed values; more are a mistake."""
MOVES = 0.001
"""A number is written with the fewest digits that move its point by less."""
FAR = 100.0
"""An interval with this ratio of its ends should have a logarithmic scale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """An option that is searched."""

    option: str
    text: str
    """The range as it was declared."""
    words: tuple[str, ...] = ()
    """The values of a choice or a range, as texts on the command line; none for an interval."""
    values: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False

    @property
    def numeric(self) -> bool:
        """Whether values have an order."""
        return all(
            isinstance(value, int | float) and type(value) is not bool for value in self.values
        )

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the largest value. It may be asked only of numbers."""
        return (min(self.values), max(self.values)) if self.values else (self.low, self.high)

    @property
    def linear_range(self) -> bool:
        """Whether an interval spans orders of magnitude on a linear scale."""
        return not self.values and not self.log and self.high >= FAR * max(self.low, 0.0) > 0

    def at(self, u: float) -> tuple[str, Any]:
        """Return the value at the coordinate `u` in [0, 1): its text, and the plain value."""
        if self.values:
            place = math.floor(u * len(self.values))
            return self.words[place], self.values[place]
        if not self.whole:
            value = self._find_shortest(u)
            return repr(value), value
        if self.log:
            # Half a number beyond the ends, so that rounding gives the ends their full share.
            whole = round(self._spread(u, self.low - 0.5, self.high + 0.5))
        else:
            whole = math.floor(self.low + u * (self.high - self.low + 1))
        whole = min(max(whole, int(self.low)), int(self.high))
        return str(whole), whole

    def _spread(self, u: float, low: float, high: float) -> float:
        """Return the number at the coordinate `u` between `low` and `high`."""
        return float(low * (high / low) ** u) if self.log else low + u * (high - low)

    def _find_place(self, x: float) -> float:
        """Return the coordinate of a number, the inverse of `_spread`."""
        if self.log:
            return math.log(x / self.low) / math.log(self.high / self.low)
        return (x - self.low) / (self.high - self.low)

    def _find_shortest(self, u: float) -> float:
        """Return the number with the fewest digits whose coordinate is `u`, within `MOVES`."""
        x = self._spread(u, self.low, self.high)
        for digits in range(17):
            rounded = float(f"{x:.{digits}e}")
            if self.low <= rounded <= self.high and abs(self._find_place(rounded) - u) < MOVES:
                return rounded
        return min(max(x, self.low), self.high)


def dimension(option: str, text: str) -> Dimension:
    """Return the searched option `option` with the range in `text`, such as `choice(1,2)`.

    Raises:
        ConfigError: the text is no range that can be searched.
    """
    where = f"{option}={text}"
    try:
        (word,) = OverridesParser.create().parse_overrides([where])
    except HydraException as error:
        raise ConfigError(f"{short(where)}: wanted {RANGES}, in quotation marks") from error
    value = word.value()
    if getattr(value, "shuffle", False):
        raise ConfigError(f"{where}: the search chooses the order of points; remove shuffle")
    if isinstance(value, ChoiceSweep) and value.simple_form:
        raise ConfigError(
            f"{where}: each value of a list would be tuned separately; wanted choice({text}) "
            "to search over these values"
        )
    if not is_range(word):
        raise ConfigError(f"{where}: a single value is no range; wanted {RANGES}")
    assert isinstance(value, Sweep)
    if tags := sorted(value.tags - {"log"}):
        raise ConfigError(f"{where}: got the tag {tags[0]}; wanted no tag, or the tag log")
    if isinstance(value, IntervalSweep):
        return _make_interval(option, text, value)
    if value.tags:
        raise ConfigError(
            f"{where}: wanted the tag log only on an interval: tag(log, interval(a,b))"
        )
    if any(isinstance(item, Sweep) for item in getattr(value, "list", ())):
        raise ConfigError(
            f"{where}: got one range inside another; wanted a single range of plain values"
        )
    if (count := value_count(word)) > MOST:
        raise ConfigError(
            f"{short(where)}: this range has {count:,.0f} values; wanted at most {MOST:,}, or "
            "interval(a,b), which draws whole numbers if a and b are whole"
        )
    words = tuple(word.sweep_string_iterator())
    values = tuple(map(Override._convert_value, word.sweep_iterator()))
    if len(words) < 2:
        raise ConfigError(
            f"{where}: got {'1 value' if words else 'an empty range'}; "
            f"wanted two or more values, or {RANGES}"
        )
    if len({*words}) < len(words):
        repeated = next(item for item in words if words.count(item) > 1)
        raise ConfigError(f"{where}: {repeated} occurs twice; give each value once")
    return Dimension(option=option, text=text, words=words, values=values)


def _make_interval(option: str, text: str, value: IntervalSweep) -> Dimension:
    """Return the searched option `option` with an interval. Raises ConfigError for bad ends."""
    where, low, high = f"{option}={text}", float(value.start or 0.0), float(value.end or 0.0)
    log = "log" in value.tags
    if not (math.isfinite(low) and math.isfinite(high)) or low >= high:
        raise ConfigError(f"{where}: got {low}, {high}; wanted finite ends, the smaller one first")
    if log and low <= 0:
        raise ConfigError(f"{where}: a logarithmic scale cannot contain {low}; wanted ends above 0")
    # The ends as they were typed: 1 makes whole numbers, 1.0 does not. Hydra also allows end=1.
    ends = text.rpartition("interval(")[2].partition(")")[0].split(",")
    is_whole = all(end.rpartition("=")[2].strip().lstrip("+-").isdecimal() for end in ends)
    return Dimension(option=option, text=text, low=low, high=high, log=log, whole=is_whole)


def draw_points(sampler: str, columns: int, number: int, seeds: Sequence[int]) -> list[list[float]]:
    """Return `number` points of the unit cube; larger numbers keep all earlier points.

    Args:
        sampler: random, or halton for SciPy's scrambled Halton points.
        columns: The number of coordinates of each point.
        number: The number of points.
        seeds: The seeds of the random generator.
    """
    if sampler == "random":
        coordinates = (np.random.default_rng([*seeds, k]).random(number) for k in range(columns))
        return [[float(u) for u in point] for point in zip(*coordinates, strict=True)]
    from scipy.stats import qmc

    points = qmc.Halton(columns, scramble=True, rng=np.random.default_rng([*seeds])).random(number)
    return [[float(u) for u in point] for point in points]


def grid_points(dimensions: Sequence[Dimension], shared: int) -> list[list[float]]:
    """Return the points of a grid; the first `shared` dimensions change fastest between points."""
    order = [*dimensions[shared:], *dimensions[:shared]]  # `product` varies the last one fastest
    sizes = [len(dimension.values) for dimension in order]
    indices = product(*(range(size) for size in sizes))
    points = [[(k + 0.5) / n for k, n in zip(index, sizes, strict=True)] for index in indices]
    unshared = len(order) - shared
    return [[*point[unshared:], *point[:unshared]] for point in points]


def values_at(
    dimensions: Sequence[Dimension], point: Sequence[float]
) -> Mapping[str, tuple[str, Any]]:
    """Return the texts and plain values of a point, by option."""
    return {
        dimension.option: dimension.at(u) for dimension, u in zip(dimensions, point, strict=False)
    }
