"""Draw costs against length: few models in one plot, many in small panels by kind of model.

Every panel has the same axes and repeats the references in grey, so that lines of different panels
can be compared. A panel shows a group of models; models without a group share the last panel.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lra.reports.figures.drawing import Look, style
from lra.reports.figures.findings import costs
from lra.reports.figures.layout import arrange, chunks, sheet
from lra.reports.figures.legends import panel_legend
from lra.reports.figures.scaling import (
    QUANTITIES,
    after_names,
    by_last_value,
    draw_crosses,
    draw_line,
    set_axes,
    why_absent,
    without_zeros,
)
from lra.reports.rows import model_order
from lra.reports.style import Surrounding, current_style
from lra.reports.tables.costs import describe_pass

AT_ENDS = 10
"""The most models of one plot if lines are named at their ends; more are drawn in panels."""
BACKGROUND = ("softmax", "sdpa", "identity")
"""Models that every panel shows."""
OTHERS = "other models"
_ACROSS = 3
PLOT, _PLOT = (4.6, 2.9), (2.75, 2.15)
"""Inches of a single plot, and of one of several."""
_LINES = 7
"""The most lines of one panel, without the references."""
_PANELS = 9
"""The most panels of one figure."""
_GREYS = {
    "softmax": Look("#555555", "", ()),
    "sdpa": Look("#777777", "", (5, 1.5)),
    "identity": Look("#AAAAAA", "", (1.5, 1.5)),
}


def panels(names: Sequence[str], groups: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the models of each panel, by its title; panels without models are omitted."""
    remaining = [name for name in names if current_style().plain(name) not in BACKGROUND]
    by_title: dict[str, list[str]] = {}
    for title, members in groups.items():
        present = [name for name in remaining if name in members]
        if present:
            by_title[title] = model_order(present)
            remaining = [name for name in remaining if name not in present]
    if remaining:
        by_title[OTHERS] = model_order(remaining)
    return {
        f"{title} ({i} of {len(parts)})" if len(parts) > 1 else title: part
        for title, names in by_title.items()
        for parts in [chunks(names, _LINES)]
        for i, part in enumerate(parts, 1)
    }


def references(names: Sequence[str]) -> list[str]:
    """Return the printed names of the models of `BACKGROUND` among these."""
    by_plain = {current_style().plain(name): name for name in names}
    return [by_plain[name] for name in BACKGROUND if name in by_plain]


def panel_pages(data: pd.DataFrame, groups: Mapping[str, Sequence[str]]) -> list[pd.DataFrame]:
    """Return the data of each page of a figure, from data of `scaling_data`."""
    names = list(dict.fromkeys(data["model"]))
    panel_names = [list(part) for part in panels(names, groups).values()]
    return [
        data[data["model"].isin([*references(names), *(n for part in page for n in part)])]
        for page in chunks(panel_names, _PANELS)
    ]


def line_figures(
    data: pd.DataFrame, looks: dict[str, Look], groups: Mapping[str, Sequence[str]], **words: Any
) -> list[tuple[pd.DataFrame, Figure]]:
    """Return (data, figure) for each page of data from `scaling_data`.

    Few models share one plot, and many are drawn in panels. Pages without a number are omitted.
    """
    style_now = current_style().style
    most = AT_ENDS if style_now.direct_labels else style_now.legend_entries
    if data["model"].nunique() <= most:
        return [(data, scaling_figure(data, looks, **words))]
    return [
        (part, scaling_figure(part, looks, groups, **words))
        for part in panel_pages(data, groups)
        if part["value"].notna().any()
    ]


def scaling_figure(
    data: pd.DataFrame,
    looks: dict[str, Look],
    groups: Mapping[str, Sequence[str]] | None = None,
    *,
    subtitle: str = "",
    title: str = "",
    names: tuple[str, str] | None = None,
) -> Figure:
    """Return a figure of costs against length.

    Lines are medians, and bands are from the 20th to the 80th percentile of the samples. A cross
    above the lines marks a failure; notes under the figure explain failures and zeros.

    Args:
        data: data from `scaling_data`, or other data with its columns.
        looks: the look of each model.
        groups: models by the title of their panel; None for one plot with all models.
        subtitle: the setting in words.
        title: the title; "" for a finding about the costs.
        names: the labels of the horizontal and the vertical axis; None for those of costs.
    """
    mode, quantity = str(data["mode"].iloc[0]), str(data["quantity"].iloc[0])
    models, small = list(dict.fromkeys(data["model"])), groups is not None
    by_panel = {"": models} if groups is None else panels(models, groups)
    across, along = names or ("sequence length (tokens)", QUANTITIES.get(quantity, quantity))
    finding = "" if title else costs(data)
    plain_title = f"{QUANTITIES.get(quantity, '').capitalize()}, {describe_pass(mode)}"
    absent = set(data[data["value"].isna()]["model"])
    crosses = max(len(absent.intersection(members)) for members in by_panel.values())
    drawn, grey = without_zeros(data), references(models) if small else []
    # Small panels have legends above them, unless lines are named at their ends or in a file.
    above = small and not (
        current_style().style.direct_labels or Surrounding.legend in current_style().style.beside
    )
    handles: list[Line2D] = []
    with style():
        grid = sheet(len(by_panel), plot=_PLOT if small else PLOT, across=_ACROSS if small else 1)
        for number, (kind, members) in enumerate(by_panel.items()):
            axes = grid.axes[number]
            set_axes(axes, data, quantity, crosses=crosses)
            greys = [
                draw_line(axes, drawn[drawn["model"] == n], _GREYS[current_style().plain(n)], n)
                for n in grey
            ]
            order = by_last_value(data, members)
            lines = [draw_line(axes, drawn[drawn["model"] == n], looks[n], n) for n in order]
            handles += lines
            draw_crosses(axes, drawn[drawn["model"].isin(members)], looks, order)
            if small:
                for handle in lines:
                    handle.set_markersize(4.5)
                axes.set_title(kind, size=8.5, loc="left")
                axes.tick_params(labelsize=6.5)
            if above:
                panel_legend(axes, lines, grid.plot[0])
            size: dict[str, Any] = {"size": 7.5} if small else {}
            if number + grid.across >= len(by_panel):
                axes.set_xlabel(across, **size)
            axes.set_ylabel(along if number % grid.across == 0 else "", **size)
        return arrange(
            grid,
            title=title or finding or plain_title,
            subtitle="; ".join(
                filter(
                    None, (plain_title * bool(finding), subtitle.rstrip("."), after_names() * small)
                )
            ),
            handles=greys if above else [*greys, *handles],
            legend_title=("in every panel" if grey and above else "") if small else after_names(),
            notes=why_absent(data),
        )
