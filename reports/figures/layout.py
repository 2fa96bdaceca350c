"""Place the parts of a figure by their measured sizes, so that nothing overlaps or is cut.

A figure has a title, a grid of plots of equal size, a legend in a separate band below them, and
notes. Texts are wrapped to the available width, and the height of the figure follows.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from matplotlib import rcParams
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis, XAxis
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.ticker import FixedLocator
from matplotlib.transforms import Bbox

from lra.reports.figures.captions import Caption
from lra.reports.figures.direct import name_ends
from lra.reports.figures.drawing import ReportFigure, new_figure
from lra.reports.figures.legends import legend_alone, legend_below, wrap_title
from lra.reports.figures.words import NOTES, SUBTITLE, TITLE, font_size, width_of, wrap
from lra.reports.style import Surrounding, current_style

EDGE = 0.08
"""Inches between the contents and the border of a figure."""
GAP = 0.16
"""Inches between neighbouring panels, and between bands."""
NARROWEST = 4.4
"""Inches of the narrowest figure, which has room for a title."""
MOST_NOTES = 12
"""The most lines of notes."""
_TICK_MARGIN = 0.02
"""Inches on each side of a tick label."""
_AXIS, _ENDS, _LEAST = 0.52, 0.85, 1.4
"""Approximate inches of an axis with its labels, and of names at the ends of lines; the least
width of one of several plots in a row."""
_LOW, _THIN = 0.9, 0.7
"""Inches of the lowest and of the narrowest plot."""
_SETTLED = 0.002
"""A plot whose width changes by fewer inches is not measured again."""
_SHARE = 0.4
"""The height of a plot that is wider than by default is at most this fraction of the figure."""


@dataclass(slots=True)
class Sheet:
    """A figure with empty plots, which `arrange` puts in their places."""

    figure: ReportFigure
    axes: tuple[Axes, ...]
    across: int
    plot: tuple[float, float]
    """Width and height of every plot, inches."""


def sheet(
    panels: int,
    *,
    plot: tuple[float, float] = (2.6, 1.9),
    across: int = 2,
    rows: bool = False,
    lines: bool = True,
) -> Sheet:
    """Return a figure with empty plots of one size, in rows of `across`; a single one is larger.

    If the style in force has a width, it sets the width of plots, and their height follows.

    Args:
        panels: the number of plots.
        plot: width and height of a plot in inches.
        across: the number of plots in a row.
        rows: whether the height of a plot is fixed, because it depends on its rows.
        lines: whether plots may have lines with names at their ends.
    """
    if panels == 1 and across > 1:
        plot = (1.35 * plot[0], 1.2 * plot[1])
    across = max(1, min(across, panels))
    if (figure_width := current_style().style.inches()) is not None:
        across, plot = _plot_grid(figure_width, plot, across, rows=rows, lines=lines)
    figure = new_figure(*(3 * side for side in plot))
    axes = tuple(figure.add_axes((0, 0, 1, 1), label=str(number)) for number in range(panels))
    grid = Sheet(figure, axes, across, plot)
    _set_size(grid)
    return grid


def _plot_grid(
    figure_width: float, plot: tuple[float, float], across: int, *, rows: bool, lines: bool
) -> tuple[int, tuple[float, float]]:
    """Return how many plots fit into a row of `figure_width` inches, and the size of a plot."""
    ends = _ENDS if lines and current_style().style.direct_labels else 0.0

    def plot_width(count: int) -> float:
        """Return the width that is left for a plot if `count` plots share a row."""
        return (figure_width - 2 * EDGE - GAP * (count - 1)) / count - _AXIS - ends

    while across > 1 and plot_width(across) < _LEAST:
        across -= 1
    width = max(_THIN, plot_width(across))
    height = (width + ends) * plot[1] / plot[0]
    if (aspect := current_style().style.aspect) is not None:
        height = width * aspect
    elif width + ends > plot[0]:  # a very wide plot would be too high with its default shape
        height = min(height, max(plot[1], _SHARE * figure_width))
    return across, (width, plot[1] if rows else max(_LOW, height))


def _set_size(grid: Sheet) -> None:
    """Give all plots their size, each in the middle of a figure three times as large."""
    # all plots overlap here, but have their final size, which decides their ticks
    grid.figure.set_size_inches(3 * grid.plot[0], 3 * grid.plot[1])
    for axes in grid.axes:
        axes.set_position((0.3, 0.3, 1 / 3, 1 / 3))


def arrange(
    grid: Sheet,
    *,
    title: str,
    subtitle: str = "",
    handles: Sequence[Artist] = (),
    legend_title: str = "",
    notes: Sequence[str] = (),
) -> Figure:
    """Place all parts of a figure and return it.

    Args:
        grid: the figure with everything drawn in its plots.
        title: the title of the figure.
        subtitle: a phrase in grey below the title.
        handles: the handles of the legend below the plots.
        legend_title: the heading of the legend.
        notes: sentences below the legend.
    """
    figure, removed = grid.figure, current_style().style.beside
    title = title[0].upper() + title[1:] if title.startswith(("all ", "none ")) else title
    figure.finding = title
    caption = Caption(
        title=title if Surrounding.title in removed else "",
        subtitle=subtitle if Surrounding.subtitle in removed else "",
        notes=tuple(notes) if Surrounding.notes in removed else (),
    )
    figure.caption = caption if caption.sentences() else None
    title, subtitle = "" if caption.title else title, "" if caption.subtitle else subtitle
    notes = () if caption.notes else notes
    for axes in grid.axes:
        _resize(axes)
    if current_style().style.direct_labels:
        handles = name_ends(grid.axes, handles, grid.plot)
    columns, rows = _measure(grid)
    width = sum(left + grid.plot[0] + right for left, right in columns)
    width += GAP * (len(columns) - 1) + 2 * EDGE
    spare = max(0.0, (0.0 if current_style().style.inches() else NARROWEST) - width)
    width += spare
    inner = width - 2 * EDGE
    sizes = font_size("title", TITLE), font_size("subtitle", SUBTITLE), font_size("notes", NOTES)
    header = [(line, sizes[0], "bold", "black") for line in wrap(title, inner, sizes[0], bold=True)]
    header += [(line, sizes[1], "normal", "0.35") for line in wrap(subtitle, inner, sizes[1])]
    if handles and Surrounding.legend in removed:
        figure.separate_legend = legend_alone(handles, legend_title, width)
        handles = ()
    legend = legend_below(figure, handles, legend_title, inner) if handles else None
    legend_height = legend.get_window_extent().height / figure.dpi + GAP if legend else 0.0
    note_lines = [
        (line, sizes[2], "normal", "0.25") for line in _note_lines(notes, inner, sizes[2])
    ]
    header_height = _height(header) + (0.6 * GAP if header or not figure.caption else 0.0)
    notes_height = _height(note_lines) + (0.5 * GAP if note_lines else 0.0)
    plots_height = sum(top + grid.plot[1] + bottom for bottom, top in rows) + GAP * (len(rows) - 1)
    height = EDGE + header_height + plots_height + legend_height + notes_height + EDGE
    figure.set_size_inches(width, height)
    y = height - EDGE - header_height
    for row, (bottom, top) in enumerate(rows):
        y -= top + grid.plot[1]
        x = EDGE + spare / 2
        for column, (left, right) in enumerate(columns):
            x += left
            number = row * grid.across + column
            if number < len(grid.axes):
                size = (grid.plot[0] / width, grid.plot[1] / height)
                grid.axes[number].set_position((x / width, y / height, *size))
            x += grid.plot[0] + right + GAP
        y -= bottom + GAP
    if legend:
        legend.set_bbox_to_anchor((EDGE / width, (EDGE + notes_height) / height))
    _write_lines(figure, header, height - EDGE)
    _write_lines(figure, note_lines, EDGE + _height(note_lines))
    return figure


def _resize(axes: Axes) -> None:
    """Give the letters around a plot the sizes of the style in force, if it has any."""
    font = current_style().style.font
    if font.panel_titles is not None:
        axes.set_title(axes.get_title(loc="left"), loc="left", size=font.panel_titles)
    if font.labels is not None:
        for label in (axes.xaxis.label, axes.yaxis.label):
            label.set_fontsize(font.labels)
    if font.ticks is not None:
        axes.tick_params(labelsize=font.ticks)


def _measure(grid: Sheet) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Return the space around the plots, as `_extents` does; fit plots into the style's width.

    A new width may change the ticks, and so the space around a plot; it is then measured again.
    """
    figure_width = current_style().style.inches()
    for axes in grid.axes if figure_width is not None else ():
        label = axes.xaxis.label  # a label wider than its plot would take space from the plot
        lines = wrap(label.get_text(), grid.plot[0], float(label.get_fontsize()))
        label.set_text("\n".join(lines))
    for _ in range(1 if figure_width is None else 3):
        for axes in grid.axes:
            wrap_title(axes, grid.plot[0])
            for axis in (axes.xaxis, axes.yaxis):
                _remove_crowded_ticks(axis)
        columns, rows = _extents(grid)
        if figure_width is not None:
            around = sum(map(sum, columns)) + GAP * (len(columns) - 1) + 2 * EDGE
            plot_width = max(_THIN, (figure_width - around) / len(columns))
            settled = abs(plot_width - grid.plot[0]) < _SETTLED
            grid.plot = (plot_width, grid.plot[1])
            if settled:
                break
            _set_size(grid)
    return columns, rows


Line = tuple[str, float, str, str]
"""A line of text, the size of its letters in points, their weight and colour."""


def _height(lines: Iterable[Line]) -> float:
    """Return the height of some lines in inches; a line takes 1.42 times the size of a letter."""
    return sum(1.42 * size / 72 for _, size, _, _ in lines)


def _write_lines(figure: Figure, lines: Sequence[Line], top: float) -> None:
    """Write lines from `top` inches (from the bottom) downwards."""
    width, height = figure.get_size_inches()
    for text, size, weight, color in lines:
        figure.text(
            EDGE / width, (top - 0.71 * size / 72) / height, text, size=size, weight=weight,
            color=color, va="center", ha="left",
        )  # fmt: skip
        top -= 1.42 * size / 72


def _note_lines(notes: Sequence[str], width: float, size: float) -> list[str]:
    """Return the lines of as many notes as fit into `MOST_NOTES` lines."""
    lines: list[str] = []
    for number, note in enumerate(notes):
        wrapped = wrap(note, width, size, most=5)
        if len(lines) + len(wrapped) > MOST_NOTES:
            more = len(notes) - number
            return [*lines, f"… and {more} more notes; the CSV of this figure has each reason"]
        lines += wrapped
    return lines


def _remove_crowded_ticks(axis: Axis) -> None:
    """Remove ticks until no two labels touch: every second one, from the last one backwards.

    Sizes of labels are computed here, because matplotlib would first make all ticks, which is slow.
    """
    low, high = sorted(axis.get_view_interval())
    positions = [float(position) for position in axis.get_majorticklocs()]
    texts = axis.get_major_formatter().format_ticks(positions)
    ticks = sorted((p, t) for p, t in zip(positions, texts, strict=True) if low <= p <= high and t)
    axes, figure = axis.axes, axis.axes.figure
    assert isinstance(axes, Axes)
    assert isinstance(figure, Figure)
    across = isinstance(axis, XAxis)
    size = _label_size(axis)
    points = [(p, 1.0) if across else (1.0, p) for p, _ in ticks]
    middles = axes.transData.transform(points)[:, 0 if across else 1] if points else ()
    ends = []
    for middle, (_, text) in zip(middles, ticks, strict=True):
        lines = text.split("\n")
        wide = max(width_of(line, size) for line in lines)
        half = 0.5 * (wide if across else 1.2 * len(lines) * size / 72) + _TICK_MARGIN
        ends.append((middle / figure.dpi - half, middle / figure.dpi + half))
    chosen = sorted(range(len(ticks)), key=lambda i: ends[i])  # an axis may be inverted
    while any(ends[i][1] > ends[j][0] for i, j in pairwise(chosen)):
        chosen = chosen[::-1][::2][::-1]
    if len(chosen) < len(ticks):
        axis.set_major_locator(FixedLocator(sorted(ticks[i][0] for i in chosen)))


def _label_size(axis: Axis) -> float:
    """Return the size of an axis's tick labels in points."""
    usual = rcParams["xtick.labelsize" if isinstance(axis, XAxis) else "ytick.labelsize"]
    size = axis.get_tick_params().get("labelsize", usual)
    return float(FontProperties(size=size).get_size_in_points())


def _extents(grid: Sheet) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Return the inches (left, right) of each column and (below, above) of each row of plots."""
    dpi = grid.figure.dpi
    down = -(-len(grid.axes) // grid.across)
    columns, rows = [[0.0, 0.0] for _ in range(grid.across)], [[0.0, 0.0] for _ in range(down)]
    for number, axes in enumerate(grid.axes):
        row, column = divmod(number, grid.across)
        drawn = axes.get_tightbbox()
        plot, total = axes.bbox, Bbox.union([axes.bbox, *([drawn] if drawn else [])])
        sides = (plot.x0 - total.x0, total.x1 - plot.x1)
        ends = (plot.y0 - total.y0, total.y1 - plot.y1)
        columns[column] = [max(a, b / dpi) for a, b in zip(columns[column], sides, strict=True)]
        rows[row] = [max(a, b / dpi) for a, b in zip(rows[row], ends, strict=True)]
    return [(a, b) for a, b in columns], [(a, b) for a, b in rows]


T = TypeVar("T")


def chunks(items: Sequence[T], most: int) -> list[list[T]]:
    """Return the items in the fewest groups of at most `most` items, of nearly equal sizes."""
    count = -(-len(items) // most)
    ends = [round(i * len(items) / count) for i in range(count + 1)] if count else []
    return [list(items[a:b]) for a, b in pairwise(ends)]
