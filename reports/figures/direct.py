"""Names at the ends of lines, in place of a legend: in their order, never overlapping."""

from collections.abc import Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from reports.figures.words import NAMES, points, wrap

_SHARE = 0.6
"""Of a plot's width: the widest name, beyond which it is broken."""
_NARROWEST = 0.9
"""Inches that a name may always have."""
_LINE = 1.25
"""Heights of a letter from one line of a name to the next."""
_AWAY = 3.0
"""Points between plot and name."""


def name_ends(
    plots: Sequence[Axes], handles: Sequence[Artist], plot: tuple[float, float]
) -> list[Artist]:
    """Name every line where it ends; return the handles that a legend still has to explain.

    These are the ones that stand for no line, for one without a point, or for what is no curve.

    Args:
        plots: with everything drawn, their limits final.
        handles: what a legend would name.
        plot: width and height of every plot, inches.
    """
    labels = [str(handle.get_label()) for handle in handles]
    named: set[str] = set()
    for axes in plots:
        ends = {
            label: (line, end)
            for line in axes.get_lines()
            if (label := str(line.get_label())) in labels and (end := _end(axes, line)) is not None
        }
        if ends:
            _write(axes, [(label, *found) for label, found in ends.items()], plot)
            named |= {*ends}
    return [handle for handle, label in zip(handles, labels, strict=True) if label not in named]


def _end(axes: Axes, line: Line2D) -> tuple[float, float] | None:
    """Return the last point of a curve as shares of the plot; None for what is none."""
    if not line.get_transform().contains_branch(axes.transData) or line.get_linestyle() == "None":
        return None
    x, y = (np.asarray(values, dtype=float) for values in line.get_data())
    known = np.isfinite(x) & np.isfinite(y)
    if not known.any() or _straight(axes, line):
        return None
    last = np.flatnonzero(known)[np.argmax(x[known])]
    across, up = axes.transAxes.inverted().transform(axes.transData.transform((x[last], y[last])))
    return (float(across), float(up)) if np.isfinite([across, up]).all() else None


def _straight(axes: Axes, line: Line2D) -> bool:
    """Return whether a line is one across the whole plot, as those of `axvline`."""
    transform = line.get_transform()  # unlike transforms may be equal by ==
    return transform is axes.get_xaxis_transform() or transform is axes.get_yaxis_transform()


def _write(
    axes: Axes,
    ends: Sequence[tuple[str, Line2D, tuple[float, float]]],
    plot: tuple[float, float],
) -> None:
    size, widest = points("legend", NAMES), max(_NARROWEST, _SHARE * plot[0])
    ordered = sorted(ends, key=lambda found: (found[2][1], found[0]))
    texts = [wrap(label, widest, size, most=3) for label, _, _ in ordered]
    heights = np.array([_LINE * size / 72 * len(lines) / plot[1] for lines in texts])
    wanted = np.clip([up for _, _, (_, up) in ordered], 0.0, 1.0)
    places = apart(wanted, heights)
    for (_, line, (across, up)), lines, place in zip(ordered, texts, places, strict=True):
        axes.annotate(
            "\n".join(lines), (1.0, float(place)), xycoords="axes fraction", xytext=(_AWAY, 0),
            textcoords="offset points", size=size, color=line.get_color(), va="center", ha="left",
            linespacing=1.05, annotation_clip=False,
        )  # fmt: skip
        leader = Line2D(
            [across, 1.0], [up, float(place)], transform=axes.transAxes, color=line.get_color(),
            linewidth=0.5, linestyle=(0, (1, 1.5)), clip_on=False, zorder=1.5,
        )  # fmt: skip
        axes.add_artist(leader)


def apart(wanted: NDArray[np.float64], heights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return middles as near to the wanted ones as may be, none of which overlap.

    Neighbours that would overlap become one block around the mean of what they want (isotonic
    regression by pooling). All stay between 0 and 1 where there is room for them.

    Args:
        wanted: middles [names], rising.
        heights: of each name [names], in the same unit.
    """
    steps = np.concatenate([[0.0], np.cumsum((heights[:-1] + heights[1:]) / 2)])
    blocks: list[tuple[float, int]] = []  # mean of `wanted - steps`, and how many
    for value in wanted - steps:
        mean, count = float(value), 1
        while blocks and blocks[-1][0] >= mean:
            before, many = blocks.pop()
            mean, count = (before * many + mean * count) / (many + count), many + count
        blocks.append((mean, count))
    pooled = np.concatenate([np.full(count, mean) for mean, count in blocks])
    low, high = heights[0] / 2, 1.0 - heights[-1] / 2 - steps[-1]
    # without room for all, they stand out of the plot as far above as below
    pooled = np.clip(pooled, low, high) if low <= high else np.full(len(pooled), (low + high) / 2)
    found: NDArray[np.float64] = pooled + steps
    return found
