"""Make legends: below the plots, above a single plot, or as a separate picture."""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend

from lra.reports.figures.drawing import new_figure
from lra.reports.figures.words import NAMES, NOTES, drawable, font_size, readable, width_of, wrap

_LINES = 6
"""The most lines of one name."""
_HANDLE = 0.62
"""Inches that a legend needs next to a name, for the sample of the line and gaps."""
_EDGE = 0.04
"""Inches around a legend that is a separate picture."""
_TITLES: WeakKeyDictionary[Axes, tuple[str, float | None]] = WeakKeyDictionary()
"""The title of each plot before wrapping, and its distance from the plot in points."""


def legend_below(figure: Figure, handles: Sequence[Artist], title: str, width: float) -> Legend:
    """Return a legend with as many columns as fit into `width` inches; long names are wrapped."""
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
    """Return a legend as a separate picture, `width` inches wide."""
    figure = new_figure(width, 20.0)  # higher than any legend; reduced below
    legend = legend_below(figure, handles, title, width - 2 * _EDGE)
    height = legend.get_window_extent().height / figure.dpi + 2 * _EDGE
    figure.set_size_inches(width, height)
    legend.set_bbox_to_anchor((_EDGE / width, _EDGE / height))
    return figure


def panel_legend(axes: Axes, handles: Sequence[Artist], width: float) -> None:
    """Put a legend above one plot, and the title of the plot above the legend."""
    figure, size = axes.figure, font_size("notes", NOTES)
    assert isinstance(figure, Figure)
    labels = [
        "\n".join(wrap(str(h.get_label()), width - _HANDLE, size, most=_LINES)) for h in handles
    ]
    legend = axes.legend(
        handles=list(handles), labels=labels, loc="lower left", bbox_to_anchor=(0, 1.01),
        fontsize=size, borderaxespad=0.2, borderpad=0, handlelength=3.2, labelspacing=0.4,
    )  # fmt: skip
    height = legend.get_window_extent().height / figure.dpi
    wrap_title(axes, width, pad=72 * height + 7)


def wrap_title(axes: Axes, width: float, pad: float | None = None) -> None:
    """Break the title of a plot into lines of `width` inches; later calls may change the width.

    `pad` is the distance from the plot in points; None leaves it unchanged.
    """
    title = axes.get_title(loc="left")
    unwrapped, earlier_pad = _TITLES.get(axes, (title, None))
    pad = earlier_pad if pad is None else pad
    size = float(axes._left_title.get_fontsize())  # type: ignore[attr-defined]  # nothing public
    lines = wrap(unwrapped, width, size, bold=True, most=5)
    if pad != earlier_pad or "\n".join(lines) != title:
        axes.set_title("\n".join(lines), loc="left", pad=pad, size=size)
    _TITLES[axes] = (unwrapped, pad)
