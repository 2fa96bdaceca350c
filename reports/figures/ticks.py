"""Labels of axes: lengths by powers of two, times and sizes in units that suit them."""

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
    """Scale and label the horizontal axis: tokens, by powers of two."""
    axes.set_xscale("log", base=2)
    axes.set_xlim(lengths[0] / 1.25, lengths[-1] * 1.25)
    axes.xaxis.set_major_locator(FixedLocator([float(n) for n in _ticks(lengths)]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())


def step_axis(axes: Axes, _: Sequence[int] = ()) -> None:
    """Label the horizontal axis: a few round steps."""
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))


def class_axis(axes: Axes, _: Sequence[int] = (), *, base: int) -> None:
    """Scale and label the horizontal axis: classes, each `base` times the one before; 0 is one."""
    axes.set_xscale("symlog", base=base, linthresh=1, linscale=1 - 1 / base)
    axes.xaxis.set_major_locator(SymmetricalLogLocator(base=base, linthresh=1))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _ticks(lengths: Sequence[int]) -> list[int]:
    """Return powers of two over the range where there are any, else the lengths themselves."""
    low, high = np.log2(lengths[0]), np.log2(lengths[-1])
    powers = [2**e for e in range(int(np.ceil(low)), int(np.floor(high)) + 1)]
    ticks = powers if len(powers) >= 2 else list(lengths)
    step = -(-len(ticks) // 9)
    return ticks[::-1][::step][::-1]


def seconds(value: float) -> str:
    """Return a time as a label of an axis."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size * 0.9999:
            return f"{value / size:g} {unit}"
    return f"{value / 1e-9:g} ns"


def in_bytes(value: float) -> str:
    """Return a size as a label of an axis."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= size * 0.9999:
            return f"{value / size:g} {unit}"
    return f"{value:g} B"
