"""Where the parts of a figure stand: measured, so that nothing overlaps and nothing is cut.

A figure is a title, a grid of plots of one size, a legend in a band of its own below them, and
notes. Texts are wrapped to the width that they have, the figure grows with what it holds.
"""

import re
from bisect import bisect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TypeVar

from matplotlib import rcParams
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis, XAxis
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.legend import Legend
from matplotlib.ticker import FixedLocator
from matplotlib.transforms import Bbox

from reports.figures.drawing import new_figure

EDGE = 0.08
"""Inches between what is drawn and the figure's border."""
GAP = 0.16
"""Inches between neighbouring panels, and between bands."""
NARROWEST = 4.4
"""Inches of the narrowest figure: room for a title."""
MOST_NOTES = 12
"""Lines of notes."""
_APART = 0.02
"""Inches on each side of a tick label."""
_LINES = 6
"""Of one name."""
_HANDLE = 0.62
"""Inches that a legend needs beside each name: sample of the line, and gaps."""
_SLACK = 1.03
"""Letters are a little wider at other resolutions."""
TITLE, SUBTITLE, NAMES, NOTES = 9.5, 7.5, 7.2, 6.8
"""Points."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """A figure with empty plots, which `arrange` puts in their places."""

    figure: Figure
    axes: tuple[Axes, ...]
    across: int
    plot: tuple[float, float]
    """Width and height of every plot, inches."""


def sheet(panels: int, *, plot: tuple[float, float] = (2.6, 1.9), across: int = 2) -> Sheet:
    """Return a figure with plots of the given size, in rows of `across`; one alone is larger."""
    if panels == 1 and across > 1:
        plot = (1.35 * plot[0], 1.2 * plot[1])
    across = max(1, min(across, panels))
    figure = new_figure(*(3 * side for side in plot))
    width, height = figure.get_size_inches()
    box = (0.3, 0.3, plot[0] / width, plot[1] / height)
    # all at one place, each of its final size: ticks depend on it
    axes = tuple(figure.add_axes(box, label=str(number)) for number in range(panels))
    return Sheet(figure, axes, across, plot)


def arrange(
    made: Sheet,
    *,
    title: str,
    subtitle: str = "",
    handles: Sequence[Artist] = (),
    legend_title: str = "",
    notes: Sequence[str] = (),
) -> Figure:
    """Put everything in its place and return the figure.

    Args:
        made: with everything drawn; titles of its plots are wrapped here.
        title: of the figure.
        subtitle: a sentence in grey below it.
        handles: what the legend below the plots names.
        legend_title: its heading.
        notes: sentences below.
    """
    figure = made.figure
    for axes in made.axes:
        _wrap_title(axes, made.plot[0])
        for axis in (axes.xaxis, axes.yaxis):
            _thin(axis)
    columns, rows = _extents(made)
    width = sum(left + made.plot[0] + right for left, right in columns)
    width += GAP * (len(columns) - 1) + 2 * EDGE
    spare = max(0.0, NARROWEST - width)
    width += spare
    inner = width - 2 * EDGE
    head = [(line, TITLE, "bold", "black") for line in wrap(title, inner, TITLE, bold=True)]
    head += [(line, SUBTITLE, "normal", "0.35") for line in wrap(subtitle, inner, SUBTITLE)]
    legend = _legend(figure, handles, legend_title, inner) if handles else None
    below = legend.get_window_extent().height / figure.dpi + GAP if legend else 0.0
    foot = [(line, NOTES, "normal", "0.25") for line in _fitting(notes, inner)]
    over = _height(head) + 0.6 * GAP
    under = _height(foot) + (0.5 * GAP if foot else 0.0)
    plots = sum(top + made.plot[1] + bottom for bottom, top in rows) + GAP * (len(rows) - 1)
    height = EDGE + over + plots + below + under + EDGE
    figure.set_size_inches(width, height)
    y = height - EDGE - over
    for row, (bottom, top) in enumerate(rows):
        y -= top + made.plot[1]
        x = EDGE + spare / 2
        for column, (left, right) in enumerate(columns):
            x += left
            number = row * made.across + column
            if number < len(made.axes):
                size = (made.plot[0] / width, made.plot[1] / height)
                made.axes[number].set_position((x / width, y / height, *size))
            x += made.plot[0] + right + GAP
        y -= bottom + GAP
    if legend:
        legend.set_bbox_to_anchor((EDGE / width, (EDGE + under) / height))
    _write(figure, head, height - EDGE)
    _write(figure, foot, EDGE + _height(foot))
    return figure


def wrap(text: str, width: float, size: float, *, bold: bool = False, most: int = 40) -> list[str]:
    """Return `text` in lines of at most `width` inches; of very many the middle is left out.

    Lines break at blanks, else after punctuation, else anywhere.
    """
    lines: list[str] = []
    line = ""
    for piece in _pieces(drawable(text)):
        if not line or _width(line + piece.rstrip(), size, bold=bold) <= width:
            line += piece
        else:
            lines.append(line.rstrip())
            line = piece
        while _width(line.rstrip(), size, bold=bold) > width and len(line) > 1:
            fitting = max(1, bisect(range(1, len(line)), width, key=_of(line, size, bold)))
            lines.append(line[:fitting])
            line = line[fitting:]
    lines += [line.rstrip()] if line.strip() else []
    return lines if len(lines) <= most else [*lines[: most // 2], "…", *lines[-(most // 2) + 1 :]]


def _pieces(text: str) -> list[str]:
    # Neither a comma within a number nor an opening bracket is a place to break after.
    return re.findall(r"(?:[^ ,/=_)\-]|,(?=\d))*(?:[,/=_)\-]+ *| +|$)", text)


def _of(line: str, size: float, bold: bool) -> Callable[[int], float]:
    return lambda letters: _width(line[:letters], size, bold=bold)


def _width(text: str, size: float, *, bold: bool = False) -> float:
    """Return inches, as the sum of the letters' advances: quicker than setting the text."""
    return sum(_advance(letter, bold) for letter in text) * size / 72 * _SLACK


@cache
def _advance(letter: str, bold: bool) -> float:
    """Return the width of a letter of one point."""
    font = get_font(findfont(FontProperties(weight="bold" if bold else "normal")))
    font.set_size(100, 72)
    return float(font.load_char(ord(letter)).linearHoriAdvance) / 65536 / 100


@cache
def _letters() -> frozenset[int]:
    return frozenset(get_font(findfont("DejaVu Sans")).get_charmap())


def drawable(text: str) -> str:
    r"""Return `text` in one line; letters that the figures' font lacks are spelt, as in `\u4e2d`.

    Boxes in their place would make different names look the same.
    """
    plain = re.sub(r"[\t\n\v\f\r]+", " ", text).strip(" ")
    return "".join(
        letter if ord(letter) in _letters() and letter.isprintable() else _spelt(letter)
        for letter in plain
    )


def _spelt(letter: str) -> str:
    return f"\\u{ord(letter):04x}" if ord(letter) < 2**16 else f"\\U{ord(letter):08x}"


Line = tuple[str, float, str, str]


def _height(lines: Iterable[Line]) -> float:
    return sum(1.42 * size / 72 for _, size, _, _ in lines)


def _write(figure: Figure, lines: Sequence[Line], top: float) -> None:
    """Write lines from `top` inches downwards."""
    width, height = figure.get_size_inches()
    for text, size, weight, color in lines:
        figure.text(
            EDGE / width, (top - 0.71 * size / 72) / height, text, size=size, weight=weight,
            color=color, va="center", ha="left",
        )  # fmt: skip
        top -= 1.42 * size / 72


def _fitting(notes: Sequence[str], width: float) -> list[str]:
    """Return the lines of as many notes as there is room for."""
    lines: list[str] = []
    for number, note in enumerate(notes):
        own = wrap(note, width, NOTES, most=5)
        if len(lines) + len(own) > MOST_NOTES:
            more = len(notes) - number
            return [*lines, f"… and {more} more: the CSV beside this figure has every reason"]
        lines += own
    return lines


def _wrap_title(axes: Axes, width: float, pad: float | None = None) -> None:
    figure = axes.figure
    assert isinstance(figure, Figure)
    title = axes.get_title(loc="left")
    lines = wrap(title, width, float(axes.title.get_fontsize()), bold=True, most=5)
    if pad is not None or "\n".join(lines) != title:
        axes.set_title("\n".join(lines), loc="left", pad=pad)


def _thin(axis: Axis) -> None:
    """Leave out tick labels that would touch their neighbours.

    Their sizes are computed: matplotlib would make every tick, which takes most of a figure's time.
    """
    low, high = sorted(axis.get_view_interval())
    positions = [float(position) for position in axis.get_majorticklocs()]
    texts = axis.get_major_formatter().format_ticks(positions)
    shown = sorted((p, t) for p, t in zip(positions, texts, strict=True) if low <= p <= high and t)
    axes, figure = axis.axes, axis.axes.figure
    assert isinstance(axes, Axes)
    assert isinstance(figure, Figure)
    across = isinstance(axis, XAxis)
    size = _label_size(axis)
    points = [(p, 1.0) if across else (1.0, p) for p, _ in shown]
    middles = axes.transData.transform(points)[:, 0 if across else 1] if points else ()
    ends = []
    for middle, (_, text) in zip(middles, shown, strict=True):
        lines = text.split("\n")
        wide = max(_width(line, size) for line in lines)
        half = 0.5 * (wide if across else 1.2 * len(lines) * size / 72) + _APART
        ends.append((middle / figure.dpi - half, middle / figure.dpi + half))
    chosen = sorted(range(len(shown)), key=lambda i: ends[i])  # an axis may be inverted
    while any(ends[i][1] > ends[j][0] for i, j in pairwise(chosen)):
        chosen = chosen[::-1][::2][::-1]
    if len(chosen) < len(shown):
        axis.set_major_locator(FixedLocator(sorted(shown[i][0] for i in chosen)))


def _label_size(axis: Axis) -> float:
    """Return points."""
    usual = rcParams["xtick.labelsize" if isinstance(axis, XAxis) else "ytick.labelsize"]
    own = axis.get_tick_params().get("labelsize", usual)
    return float(FontProperties(size=own).get_size_in_points())


def _extents(made: Sheet) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Return what each column needs left and right of its plots, and each row below and above."""
    dpi = made.figure.dpi
    down = -(-len(made.axes) // made.across)
    columns, rows = [[0.0, 0.0] for _ in range(made.across)], [[0.0, 0.0] for _ in range(down)]
    for number, axes in enumerate(made.axes):
        row, column = divmod(number, made.across)
        drawn = axes.get_tightbbox()
        plot, all_ = axes.bbox, Bbox.union([axes.bbox, *([drawn] if drawn else [])])
        sides = (plot.x0 - all_.x0, all_.x1 - plot.x1)
        ends = (plot.y0 - all_.y0, all_.y1 - plot.y1)
        columns[column] = [max(a, b / dpi) for a, b in zip(columns[column], sides, strict=True)]
        rows[row] = [max(a, b / dpi) for a, b in zip(rows[row], ends, strict=True)]
    return [(a, b) for a, b in columns], [(a, b) for a, b in rows]


def _legend(figure: Figure, handles: Sequence[Artist], title: str, width: float) -> Legend:
    """Return a legend of as many columns as fit; names that are too long for one are wrapped."""
    names = [str(handle.get_label()) for handle in handles]
    widest = max(_width(drawable(name), NAMES) for name in names)
    columns = max(1, min(4, len(names), int(width / (widest + _HANDLE + 0.1))))
    labels = ["\n".join(wrap(name, width - _HANDLE, NAMES, most=_LINES)) for name in names]
    heading = "\n".join(wrap(title, width, NAMES))
    return figure.legend(
        handles=list(handles), labels=labels, loc="lower left", bbox_to_anchor=(0, 0),
        ncols=columns, fontsize=NAMES, title=heading or None,
        title_fontproperties={"size": NAMES}, alignment="left", borderaxespad=0, borderpad=0.1,
        columnspacing=1.2, handlelength=3.4, labelspacing=0.5,
    )  # fmt: skip


def panel_legend(axes: Axes, handles: Sequence[Artist], width: float) -> None:
    """Name the lines of one plot above it, and its title above these."""
    figure = axes.figure
    assert isinstance(figure, Figure)
    labels = [
        "\n".join(wrap(str(h.get_label()), width - _HANDLE, NOTES, most=_LINES)) for h in handles
    ]
    legend = axes.legend(
        handles=list(handles), labels=labels, loc="lower left", bbox_to_anchor=(0, 1.01),
        fontsize=NOTES, borderaxespad=0.2, borderpad=0, handlelength=3.2, labelspacing=0.4,
    )  # fmt: skip
    high = legend.get_window_extent().height / figure.dpi
    _wrap_title(axes, width, pad=72 * high + 7)


T = TypeVar("T")


def chunks(items: Sequence[T], most: int) -> list[list[T]]:
    """Return the items in order, in the fewest groups of at most `most`, equally large."""
    count = -(-len(items) // most)
    ends = [round(i * len(items) / count) for i in range(count + 1)] if count else []
    return [list(items[a:b]) for a, b in pairwise(ends)]
