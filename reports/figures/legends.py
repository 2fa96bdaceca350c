"""Which line is which: legends below the plots, above one of them, or as a separate picture."""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend

from lra.reports.figures.drawing import new_figure
from lra.reports.figures.words import NAMES, NOTES, drawable, font_size, readable, width_of, wrap

_LINES = 6
"""Of one name."""
_HANDLE = 0.62
"""Inches that a legend needs in addition to each name: sample of the line, and gaps."""
_EDGE = 0.04
"""Inches around a legend that is a separate picture."""
_TITLES: WeakKeyDictionary[Axes, tuple[str, float | None]] = WeakKeyDictionary()
"""Titles of plots before they were wrapped, and their distances."""


def legend_below(figure: Figure, handles: Sequence[Artist], title: str, width: float) -> Legend:
    """Return a legend of as many columns as fit; names that are too long for one are wrapped."""
    size = font_size("legend", NAMES)
    names = readable([str(handle.get_label()) for handle in handles])
    widest = max(width_of(drawable(name), size) for name in names)
    columns = max(1, min(4, len(names), int(width / (widest + _HANDLE + 0.1))))
    labels = ["\n".join(wrap(name, width - _HANDLE, size, most=_LINES)) for name in names]
    heading = "\n".join(wrap(title, width, size))
    return figure.legend(
        handles=list(handles), labels=labels, loc="lower left", bbox_to_anchor=(0, 0),
        ncols=columns, fontsize=size, title=heading or None,
        title_fontproperties={"size": size}, alignment="left", borderaxespad=0, borderpad=0.1,
        columnspacing=1.2, handlelength=3.4, labelspacing=0.5,
    )  # fmt: skip


def legend_alone(handles: Sequence[Artist], title: str, width: float) -> Figure:
    """Return a legend as a separate picture, `width` inches wide, as high as it needs."""
    figure = new_figure(width, 20.0)
    legend = legend_below(figure, handles, title, width - 2 * _EDGE)
    high = legend.get_window_extent().height / figure.dpi + 2 * _EDGE
    figure.set_size_inches(width, high)
    legend.set_bbox_to_anchor((_EDGE / width, _EDGE / high))
    return figure


def panel_legend(axes: Axes, handles: Sequence[Artist], width: float) -> None:
    """Name the lines of one plot above it, and its title above these."""
    figure, size = axes.figure, font_size("notes", NOTES)
    assert isinstance(figure, Figure)
    labels = [
        "\n".join(wrap(str(h.get_label()), width - _HANDLE, size, most=_LINES)) for h in handles
    ]
    legend = axes.legend(
        handles=list(handles), labels=labels, loc="lower left", bbox_to_anchor=(0, 1.01),
        fontsize=size, borderaxespad=0.2, borderpad=0, handlelength=3.2, labelspacing=0.4,
    )  # fmt: skip
    high = legend.get_window_extent().height / figure.dpi
    wrap_title(axes, width, pad=72 * high + 7)


def wrap_title(axes: Axes, width: float, pad: float | None = None) -> None:
    """Break the title of a plot into lines of `width` inches; again where the width has changed."""
    title = axes.get_title(loc="left")
    whole, before = _TITLES.get(axes, (title, None))
    pad = before if pad is None else pad
    size = float(axes._left_title.get_fontsize())  # type: ignore[attr-defined]  # nothing public
    lines = wrap(whole, width, size, bold=True, most=5)
    if pad != before or "\n".join(lines) != title:
        axes.set_title("\n".join(lines), loc="left", pad=pad, size=size)
    _TITLES[axes] = (whole, pad)
