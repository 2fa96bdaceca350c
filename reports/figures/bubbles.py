"""Draw speed, score and memory of models in one plot, as in the Long Range Arena's paper."""

import math
from collections.abc import Sequence
from itertools import product

import numpy as np
import pandas as pd
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

from lra.reports.figures.drawing import PALETTE, legend_name, style
from lra.reports.figures.findings import front, model_list
from lra.reports.figures.layout import arrange, sheet
from lra.reports.figures.words import NAMES, drawable

Points = NDArray[np.float64]

PLOT = (4.6, 3.2)
"""Width and height of the plot in inches."""
LARGEST = 30.0
"""Diameter of the largest bubble in points."""
_SMALLEST = 4.0
_LABEL = 6.8
"""Size of a name in points."""
_AWAY = (0.0, 4.0, 9.0, 15.0, 22.0, 30.0, 40.0, 52.0, 66.0, 82.0, 100.0, 125.0)
"""Possible distances of a name from the edge of its bubble, in points."""
_ANGLES = tuple(math.radians(d) for d in (0, 180, 90, 270, 35, 325, 145, 215, 60, 300, 120, 240))
_LEADER = 5.0
"""A thin line joins a name with its bubble if they are further apart, in points."""


def complete(data: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that have all three numbers: speed, score and memory."""
    return data[data[["examples_per_second", "score", "memory_bytes"]].notna().all(axis=1)]


def bubble_figure(data: pd.DataFrame, *, title: str, subtitle: str, notes: Sequence[str]) -> Figure:
    """Return a figure of data from `lra.reports.arena.bubbles.bubble_data`.

    Published numbers are hollow circles. Notes below the plot name models without all numbers.

    `subtitle` says what was measured, and `notes` are sentences below the plot.
    """
    # large bubbles first, so that small ones are in front of them
    drawn = complete(data).sort_values("memory_bytes", ascending=False, kind="stable")
    kinds = sorted(set(data["kind"]))
    colors = {kind: PALETTE[1 + i % (len(PALETTE) - 1)] for i, kind in enumerate(kinds)}
    most = float(drawn["memory_bytes"].max())
    with style():
        grid = sheet(1, plot=PLOT, across=1)
        (axes,) = grid.axes
        diameters = [_diameter(float(size), most) for size in drawn["memory_bytes"]]
        positions = _positions(drawn)
        published = drawn["published"].notna()
        for (x, y), kind, size, hollow in zip(
            positions, drawn["kind"], diameters, published, strict=True
        ):
            axes.plot(
                [x], [y], linestyle="none", marker="o", markersize=size, zorder=3,
                markerfacecolor="none" if hollow else (colors[kind], 0.55),
                markeredgecolor=colors[kind],
            )  # fmt: skip
        _scale_axes(axes, drawn)
        unnamed_models = _write_names(axes, drawn, diameters)
        _draw_size_legend(axes, most)
        present = [kind for kind in kinds if kind in set(drawn["kind"])]
        handles = [
            Line2D([], [], linestyle="none", marker="o", markersize=7, color=colors[kind],
                   label=legend_name(kind))
            for kind in present
        ]  # fmt: skip
        if published.any():
            handles.append(Line2D([], [], linestyle="none", marker="o", markersize=7, color="0.4",
                                  markerfacecolor="none", label="published"))  # fmt: skip
        absent = [
            f"{', '.join(group['model'])}: no bubble, because {reason}"
            for reason, group in data.drop(drawn.index).groupby("reason", sort=False)
        ]
        unnamed = [f"the plot has no room for the name of {name}" for name in unnamed_models]
        measured = drawn[~published].assign(slowness=lambda t: -t["examples_per_second"])
        first = model_list(front(measured, "slowness", "score", higher=True))
        return arrange(
            grid, title=f"Best average score at a given speed: {first}", handles=handles,
            subtitle=f"{title}; {subtitle}", legend_title="kind of model",
            notes=[*notes, *absent, *unnamed],
        )  # fmt: skip


def _diameter(size: float, most: float) -> float:
    """Return the diameter in points of a bubble whose area is proportional to its memory."""
    return max(_SMALLEST, LARGEST * math.sqrt(size / most))


def _scale_axes(axes: Axes, drawn: pd.DataFrame) -> None:
    """Set a logarithmic axis of speed and a linear axis of scores, with margins for bubbles."""
    speeds = drawn["examples_per_second"].astype(float)
    low, high = float(speeds.min()) / 1.5, float(speeds.max()) * 1.5
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    narrow = high / low < 40  # too few powers of ten for ticks; 2 and 5 get some, too
    axes.xaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5) if narrow else (1,)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    scores = 100 * drawn["score"].astype(float)
    margin = max(1.0, 0.18 * float(scores.max() - scores.min()))
    axes.set_ylim(float(scores.min()) - margin, float(scores.max()) + margin)
    axes.set_xlabel("speed of training (examples per second)")
    axes.set_ylabel("average score (percent)")


def _draw_size_legend(axes: Axes, most: float) -> None:
    """Draw a legend of areas next to the plot, with powers of two up to `most` bytes."""
    top = 2.0 ** math.floor(math.log2(most))
    # A quarter of the memory is half of the diameter.
    sizes = [top / 4**i for i in range(3) if _diameter(top / 4**i, most) > _SMALLEST]
    handles = [
        Line2D([], [], linestyle="none", marker="o", markersize=_diameter(size, most),
               markerfacecolor="0.85", markeredgecolor="0.4", label=_size_text(size))
        for size in sizes
    ]  # fmt: skip
    axes.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(1.02, 1.0), title="area: memory\n",
        fontsize=NAMES, title_fontproperties={"size": NAMES}, alignment="left",
        handlelength=LARGEST / NAMES, handleheight=1.1 * LARGEST / NAMES, borderaxespad=0,
    )  # fmt: skip


def _size_text(size: float) -> str:
    """Return a number of bytes in the largest unit of which there is at least one."""
    for unit, least in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= least:
            return f"{size / least:g} {unit}"
    return f"{size:g} B"


def _write_names(axes: Axes, drawn: pd.DataFrame, diameters: Sequence[float]) -> list[str]:
    """Write a name next to each bubble; return the names for which there is no free place.

    A name never covers another name, and if possible no bubble.
    """
    scale = rcParams["figure.dpi"] / 72
    positions = _positions(drawn)
    centres = axes.transData.transform(positions)
    bubbles = [
        Bbox([centre - scale * size / 2, centre + scale * size / 2])
        for centre, size in zip(centres, diameters, strict=True)
    ]
    taken: list[Bbox] = []
    leaders = np.empty((0, 2))
    missing = []
    # names of small bubbles are placed first, because they need the nearest places most
    for i in sorted(range(len(centres)), key=lambda i: diameters[i]):
        name = str(drawn["model"].iloc[i])
        x, y = positions[i]
        text = axes.annotate(
            drawable(name), (x, y), xytext=(0, 0), textcoords="offset points", size=_LABEL,
            ha="center", va="center", zorder=5,
        )  # fmt: skip
        size = np.asarray(text.get_window_extent().size)
        box = _free_place(
            axes.bbox, bubbles[i], size, taken=taken, bubbles=bubbles, leaders=leaders
        )
        if box is None:
            missing.append(name)
            text.remove()
            continue
        taken.append(box)
        middle = np.array([box.x0 + box.x1, box.y0 + box.y1]) / 2
        text.set_position((middle - centres[i]) / scale)
        leader = _leader_points(centres[i], scale * diameters[i] / 2, box)
        axes.plot(*axes.transData.inverted().transform(leader).T, color="0.45", linewidth=0.5)
        leaders = np.concatenate([leaders, leader])
    return missing


def _positions(drawn: pd.DataFrame) -> Points:
    """Return the speed and the score in percent of each bubble; array (bubbles, 2)."""
    positions: Points = drawn[["examples_per_second", "score"]].to_numpy(dtype=np.float64)
    return positions * [1.0, 100.0]


def _leader_points(centre: Points, radius: float, box: Bbox) -> Points:
    """Return points on the line from a bubble to the box of its name, in pixels; array (n, 2).

    It is empty if the name is so near that no line is drawn.
    """
    nearest = np.clip(centre, [box.x0, box.y0], [box.x1, box.y1])
    distance = float(np.hypot(*(nearest - centre)))
    if distance - radius < _LEADER * rcParams["figure.dpi"] / 72:
        return np.empty((0, 2))
    edge = centre + (nearest - centre) * radius / distance
    return np.linspace(edge, nearest, 24)


def _free_place(
    plot: Bbox,
    bubble: Bbox,
    size: Points,
    *,
    taken: Sequence[Bbox],
    bubbles: Sequence[Bbox],
    leaders: Points,
) -> Bbox | None:
    """Return the box of a name with the fewest faults, the nearest of equal ones, or None.

    Faults are bubbles under the name, and crossings of lines with names, bubbles and other lines.
    A box within the plot that overlaps no other name is required. All arguments are in pixels.

    Args:
        plot: the box of the plot.
        bubble: the square around the bubble.
        size: width and height of the name (2).
        taken: the boxes of other names.
        bubbles: the squares around all bubbles.
        leaders: points on the lines to other names (n, 2).
    """
    centre, radius = np.array([bubble.x0 + bubble.x1, bubble.y0 + bubble.y1]) / 2, bubble.width / 2
    best: Bbox | None = None
    fewest = math.inf
    for points_away, angle in product(_AWAY, _ANGLES):
        distance = radius + (points_away + 2) * rcParams["figure.dpi"] / 72
        direction = np.array([math.cos(angle), math.sin(angle)])
        middle = centre + direction * (distance + size / 2)
        box = Bbox([middle - size / 2 - 1, middle + size / 2 + 1])
        inside = plot.x0 < box.x0 and box.x1 < plot.x1 and plot.y0 < box.y0 and box.y1 < plot.y1
        if not inside or any(box.overlaps(other) for other in taken):
            continue
        leader = _leader_points(centre, radius, box)
        other_bubbles = (other for other in bubbles if not other.overlaps(bubble))
        faults = 3 * any(box.overlaps(other) for other in bubbles)
        faults += 3 * any(other.count_contains(leader) for other in taken)
        faults += 2 * bool(box.count_contains(leaders))
        faults += any(other.count_contains(leader) for other in other_bubbles)
        if faults < fewest:
            fewest, best = faults, box
        if not faults:
            break
    return best
