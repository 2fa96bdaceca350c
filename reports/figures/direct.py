"""Write names at the ends of lines instead of a legend, without overlaps."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from lra.reports.figures.words import DARK, NAMES, font_size, wrap

_SHARE = 0.6
"""The widest line of a name, as a fraction of the plot's width; longer names are broken."""
_NARROWEST = 0.9
"""Inches that a line of a name may always have."""
_LINE = 1.25
"""Distance of two lines of a name, in heights of a letter."""
_LINES, _HIGHEST = 2, 1.1
"""The most lines of one name, and the most heights of the plot for all names together. If the names
need more, the figure has a legend."""
_AWAY = 5.0
"""Points between the plot and a name."""


def name_ends(
    plots: Sequence[Axes], handles: Sequence[Artist], plot: tuple[float, float]
) -> list[Artist]:
    """Name every curve at its end; return the handles that a legend must still show.

    These are handles without a curve, or all handles if there is no room for the names.

    Args:
        plots: the plots, with everything drawn and final limits.
        handles: the handles of a legend for all lines.
        plot: width and height of a plot in inches.
    """
    labels = [str(handle.get_label()) for handle in handles]
    ends_by_plot = [(axes, _Ends.of(axes, labels, plot)) for axes in plots]
    if not all(ends.fit for _, ends in ends_by_plot):
        return list(handles)
    named: set[str] = set()
    for axes, ends in ends_by_plot:
        ends.write(axes)
        named |= {*ends.labels}
    return [handle for handle, label in zip(handles, labels, strict=True) if label not in named]


def _end_point(axes: Axes, line: Line2D) -> tuple[float, float] | None:
    """Return the last point of a curve in fractions of the plot's size; None for other lines."""
    if not line.get_transform().contains_branch(axes.transData) or line.get_linestyle() == "None":
        return None
    x, y = (np.asarray(values, dtype=float) for values in line.get_data())
    finite = np.isfinite(x) & np.isfinite(y)
    if not finite.any() or _spans_plot(axes, line):
        return None
    last = np.flatnonzero(finite)[np.argmax(x[finite])]
    across, up = axes.transAxes.inverted().transform(axes.transData.transform((x[last], y[last])))
    return (float(across), float(up)) if np.isfinite([across, up]).all() else None


def _spans_plot(axes: Axes, line: Line2D) -> bool:
    """Return whether a line crosses the whole plot, as those of `axvline` do."""
    transform = line.get_transform()  # compared by `is`, because == may be true for others
    return transform is axes.get_xaxis_transform() or transform is axes.get_yaxis_transform()


class _Ends(NamedTuple):
    """The ends of the lines of one plot, and their names; the lowest end is first."""

    labels: list[str]
    lines: list[Line2D]
    points: list[tuple[float, float]]
    """The ends of lines, in fractions of the plot's width and height."""
    texts: list[list[str]]
    """The lines of each name."""
    heights: NDArray[np.float64]
    """The heights of names, as fractions of the plot's height; array (names)."""

    @classmethod
    def of(cls, axes: Axes, labels: Sequence[str], plot: tuple[float, float]) -> "_Ends":
        """Return the ends of the curves with these labels, in a plot with everything drawn."""
        axes.get_xlim(), axes.get_ylim()  # reading the limits updates them
        ends: dict[str, tuple[Line2D, tuple[float, float]]] = {}
        for line in axes.get_lines():
            label = str(line.get_label())
            if label in labels and (point := _end_point(axes, line)) is not None:
                ends[label] = (line, point)
        height_of = {label: up for label, (_, (_, up)) in ends.items()}
        size, widest = font_size("legend", NAMES), max(_NARROWEST, _SHARE * plot[0])
        order = sorted(ends, key=lambda label: (height_of[label], label))
        texts = [wrap(label, widest, size) for label in order]
        heights = np.array([_LINE * size / 72 * len(lines) / plot[1] for lines in texts])
        lines, points = [ends[label][0] for label in order], [ends[label][1] for label in order]
        return cls(order, lines, points, texts, heights)

    @property
    def fit(self) -> bool:
        """Whether there is room for all names next to the plot."""
        lines = max((len(text) for text in self.texts), default=0)
        return lines <= _LINES and float(self.heights.sum()) <= _HIGHEST

    def write(self, axes: Axes) -> None:
        """Write the names next to the plot, and draw a thin line from each name to its curve."""
        if not self.labels:
            return
        targets = np.clip([up for _, up in self.points], 0.0, 1.0)
        places = spread_apart(targets, self.heights)
        ends = zip(self.lines, self.points, self.texts, places, strict=True)
        for line, (across, up), text, place in ends:
            axes.annotate(
                "\n".join(text), (1.0, float(place)), xycoords="axes fraction", xytext=(_AWAY, 0),
                textcoords="offset points", size=font_size("legend", NAMES), color=DARK,
                va="center", ha="left", linespacing=1.05, annotation_clip=False,
            )  # fmt: skip
            leader = Line2D(
                [across, 1.0], [up, float(place)], transform=axes.transAxes,
                color=line.get_color(), linewidth=0.5, linestyle=(0, (1, 1.5)), clip_on=False,
                zorder=1.5, marker=line.get_marker(), markevery=[1], markersize=3.5,
                markerfacecolor=line.get_markerfacecolor(),
            )  # fmt: skip
            axes.add_artist(leader)


def spread_apart(targets: NDArray[np.float64], heights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the middles of names near their targets, moved as little as possible without overlap.

    Names that would overlap form a block around the mean of their targets (isotonic regression by
    the pool-adjacent-violators algorithm). All names are between 0 and 1 if there is room.

    Args:
        targets: the wanted middles in rising order (names).
        heights: the heights of names in the same unit (names).
    """
    # Without overlap, targets - steps must not fall, where steps are distances of tight neighbours.
    steps = np.concatenate([[0.0], np.cumsum((heights[:-1] + heights[1:]) / 2)])
    blocks: list[tuple[float, int]] = []  # (mean of `targets - steps`, number of names)
    for value in targets - steps:
        mean, count = float(value), 1
        while blocks and blocks[-1][0] >= mean:
            below_mean, below_count = blocks.pop()
            total = below_mean * below_count + mean * count
            count += below_count
            mean = total / count
        blocks.append((mean, count))
    pooled = np.concatenate([np.full(count, mean) for mean, count in blocks])
    low, high = heights[0] / 2, 1.0 - heights[-1] / 2 - steps[-1]
    # without room for all names, they exceed the plot equally above and below
    pooled = np.clip(pooled, low, high) if low <= high else np.full(len(pooled), (low + high) / 2)
    middles: NDArray[np.float64] = pooled + steps
    return middles
