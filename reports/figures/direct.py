"""Names at the ends of lines, in place of a legend: in their order, never overlapping."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from lra.reports.figures.words import DARK, NAMES, font_size, wrap

_SHARE = 0.6
"""Of a plot's width: the widest name, beyond which it is broken."""
_NARROWEST = 0.9
"""Inches that a name may always have."""
_LINE = 1.25
"""Heights of a letter from one line of a name to the next."""
_LINES, _HIGHEST = 2, 1.1
"""Lines of one name, and heights of a plot that all names have; beyond, there is a legend."""
_AWAY = 5.0
"""Points between plot and name."""


def name_ends(
    plots: Sequence[Axes], handles: Sequence[Artist], plot: tuple[float, float]
) -> list[Artist]:
    """Name every line where it ends; return the handles that a legend still has to explain.

    These are the ones that stand for no line, for one without a point, or for what is no curve; and
    all of them where there is no room for the names.

    Args:
        plots: with everything drawn, their limits final.
        handles: what a legend would name.
        plot: width and height of every plot, inches.
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


def _end(axes: Axes, line: Line2D) -> tuple[float, float] | None:
    """Return the last point of a curve as shares of the plot; None for what is none."""
    if not line.get_transform().contains_branch(axes.transData) or line.get_linestyle() == "None":
        return None
    x, y = (np.asarray(values, dtype=float) for values in line.get_data())
    finite = np.isfinite(x) & np.isfinite(y)
    if not finite.any() or _straight(axes, line):
        return None
    last = np.flatnonzero(finite)[np.argmax(x[finite])]
    across, up = axes.transAxes.inverted().transform(axes.transData.transform((x[last], y[last])))
    return (float(across), float(up)) if np.isfinite([across, up]).all() else None


def _straight(axes: Axes, line: Line2D) -> bool:
    """Return whether a line is one across the whole plot, as those of `axvline`."""
    transform = line.get_transform()  # unlike transforms may be equal by ==
    return transform is axes.get_xaxis_transform() or transform is axes.get_yaxis_transform()


class _Ends(NamedTuple):
    """Where the lines of one plot end, the lowest first, and what is written there."""

    labels: list[str]
    lines: list[Line2D]
    points: list[tuple[float, float]]
    """As shares of the plot."""
    texts: list[list[str]]
    """Names, in lines."""
    heights: NDArray[np.float64]
    """Of the names, as shares of the plot's height [names]."""

    @classmethod
    def of(cls, axes: Axes, labels: Sequence[str], plot: tuple[float, float]) -> "_Ends":
        """Find the ends in a plot with everything drawn."""
        axes.get_xlim(), axes.get_ylim()  # what was drawn last moves limits when they are read
        ends = {
            label: (line, end)
            for line in axes.get_lines()
            if (label := str(line.get_label())) in labels and (end := _end(axes, line)) is not None
        }
        size, widest = font_size("legend", NAMES), max(_NARROWEST, _SHARE * plot[0])
        order = sorted(ends, key=lambda label: (ends[label][1][1], label))
        texts = [wrap(label, widest, size) for label in order]
        heights = np.array([_LINE * size / 72 * len(lines) / plot[1] for lines in texts])
        lines, where = [ends[label][0] for label in order], [ends[label][1] for label in order]
        return cls(order, lines, where, texts, heights)

    @property
    def fit(self) -> bool:
        """Whether all names have room next to the plot, each in few lines."""
        lines = max((len(text) for text in self.texts), default=0)
        return lines <= _LINES and float(self.heights.sum()) <= _HIGHEST

    def write(self, axes: Axes) -> None:
        """Write the names, and join each with its line."""
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
    """Return middles near the targets, moved as little as possible so that none overlap.

    Neighbours that would overlap become one block around the mean of their targets (isotonic
    regression by pooling). All stay between 0 and 1 where there is room for them.

    Args:
        targets: middles [names], rising.
        heights: of each name [names], in the same unit.
    """
    steps = np.concatenate([[0.0], np.cumsum((heights[:-1] + heights[1:]) / 2)])
    blocks: list[tuple[float, int]] = []  # mean of `targets - steps`, and how many
    for value in targets - steps:
        mean, count = float(value), 1
        while blocks and blocks[-1][0] >= mean:
            before, many = blocks.pop()
            mean, count = (before * many + mean * count) / (many + count), many + count
        blocks.append((mean, count))
    pooled = np.concatenate([np.full(count, mean) for mean, count in blocks])
    low, high = heights[0] / 2, 1.0 - heights[-1] / 2 - steps[-1]
    # without room for all, they stand out of the plot as far above as below
    pooled = np.clip(pooled, low, high) if low <= high else np.full(len(pooled), (low + high) / 2)
    middles: NDArray[np.float64] = pooled + steps
    return middles
