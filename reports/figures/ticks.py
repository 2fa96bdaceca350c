"""Scale and label axes: lengths by powers of two, times and sizes in suitable units."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    MaxNLocator,
    NullLocator,
    SymmetricalLogLocator,
)


def length_axis(axes: Axes, lengths: Sequence[int]) -> None:
    """Make the horizontal axis one of lengths: logarithmic, with ticks at powers of two."""
    axes.set_xscale("log", base=2)
    axes.set_xlim(lengths[0] / 1.25, lengths[-1] * 1.25)
    axes.xaxis.set_major_locator(FixedLocator([float(n) for n in _ticks(lengths)]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())


def step_axis(axes: Axes, _: Sequence[int] = ()) -> None:
    """Give the horizontal axis a few ticks at round numbers of steps."""
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))


def class_axis(axes: Axes, _: Sequence[int] = (), *, base: int) -> None:
    """Make the horizontal axis logarithmic with ticks at powers of `base`, and at 0."""
    # With this `linscale`, 1 is as far from 0 as from `base`.
    axes.set_xscale("symlog", base=base, linthresh=1, linscale=1 - 1 / base)
    axes.xaxis.set_major_locator(SymmetricalLogLocator(base=base, linthresh=1))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _ticks(lengths: Sequence[int]) -> list[int]:
    """Return the powers of two in the range, or the lengths if there is at most one; at most 9."""
    low, high = np.log2(lengths[0]), np.log2(lengths[-1])
    powers = [2**e for e in range(int(np.ceil(low)), int(np.floor(high)) + 1)]
    ticks = powers if len(powers) >= 2 else list(lengths)
    step = -(-len(ticks) // 9)
    return ticks[::-1][::step][::-1]


def seconds(value: float) -> str:
    """Return a time as a label of an axis, as in "20 ms"; a unit begins a little below 1 of it."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size * 0.9999:
            return f"{value / size:g} {unit}"
    return f"{value / 1e-9:g} ns"


def in_bytes(value: float) -> str:
    """Return a number of bytes as a label of an axis, as in "64 MiB"."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= size * 0.9999:
            return f"{value / size:g} {unit}"
    return f"{value:g} B"
