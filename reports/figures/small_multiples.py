"""Draw small multiples: panels of one kind with one legend for all of them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lra.reports.figures.captions import panel_titles
from lra.reports.figures.drawing import OTHERS, style
from lra.reports.figures.layout import arrange, sheet
from lra.reports.rows import model_order


def draw_panels(
    parts: Sequence[tuple[tuple[str, str], pd.DataFrame]],
    draw: Callable[[Axes, pd.DataFrame], Mapping[str, Artist] | None],
    *,
    title: str,
    subtitle: str = "",
    plot: tuple[float, float],
    handles: Callable[[], Sequence[Artist]] = list,
    notes: Sequence[str] = (),
    **grid: Any,
) -> Figure:
    """Return a figure with a panel for each part.

    Args:
        parts: for each panel, its task with facts about it, and its data.
        draw: a function that draws one panel; it may return handles of a legend by model.
        title: the title of the figure.
        subtitle: a phrase below the title.
        plot: width and height of a panel in inches.
        handles: a function that returns further handles of the legend.
        notes: sentences below the panels.
        grid: further arguments of `lra.reports.figures.layout.sheet`.
    """
    with style():
        grid_sheet = sheet(len(parts), plot=plot, **grid)
        titles, facts = panel_titles([words for words, _ in parts])
        drawn: dict[str, Artist] = {}
        for axes, words, (_, part) in zip(grid_sheet.axes, titles, parts, strict=True):
            for name, handle in (draw(axes, part) or {}).items():
                drawn.setdefault(name, handle)
            axes.set_title(words, size=8.5)
        return arrange(
            grid_sheet,
            title=title,
            subtitle=subtitle,
            handles=[*_with_others(drawn), *handles()],
            notes=[*notes, *filter(None, [facts])],
        )


def _with_others(drawn: Mapping[str, Artist]) -> list[Artist]:
    """Return the handles of a legend in order, with a single entry for all light grey models."""
    grey = {n for n, h in drawn.items() if isinstance(h, Line2D) and h.get_color() == OTHERS.color}
    named = [drawn[name] for name in model_order([*drawn]) if name not in grey]
    label = f"{len(grey)} other{'s' * (len(grey) > 1)}"
    others = Line2D([], [], color=OTHERS.color, marker=OTHERS.marker, label=label)
    return [*named, *([others] if grey else [])]
