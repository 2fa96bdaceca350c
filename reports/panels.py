"""Many models at once: the scaling figure as small panels, one per kind of model.

Every panel has the same axes and repeats the references in grey, so that a line can be compared
across panels. One panel per group of `groups`; models that no group names share a last one.
"""

import textwrap
from collections.abc import Mapping, Sequence
from math import ceil

import pandas as pd
from matplotlib.figure import Figure

from reports.drawing import Look, new_figure, style
from reports.efficiency import describe_pass
from reports.rows import model_order
from reports.scaling_figures import (
    QUANTITIES,
    by_last_value,
    draw_crosses,
    draw_line,
    set_axes,
    why_absent,
)

AT_MOST = 10
"""Models that one plot holds legibly; more are drawn in panels."""
BACKGROUND = ("softmax", "sdpa", "identity")
"""Drawn in every panel."""
OTHERS = "other models"
_ACROSS = 3
_WIDE, _PLOT, _NAME = 3.55, 2.15, 0.165
"""Inches: a panel's width, the height of its plot and of one name above it."""
_GREYS = {"softmax": "#555555", "sdpa": "#888888", "identity": "#BBBBBB"}


def panels(names: Sequence[str], groups: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the models of each panel, by its title; empty panels are left out.

    A name with options in brackets, as in `performer (mixer.features=64)`, goes with its family.
    """
    left = [name for name in names if name not in BACKGROUND]
    found: dict[str, list[str]] = {}
    for title, members in groups.items():
        own = [name for name in left if name.partition(" (")[0] in members]
        if own:
            found[title] = model_order(own)
            left = [name for name in left if name not in own]
    if left:
        found[OTHERS] = model_order(left)
    return found


def panel_figure(
    data: pd.DataFrame,
    looks: dict[str, Look],
    groups: Mapping[str, Sequence[str]],
    *,
    subtitle: str = "",
    title: str = "",
) -> Figure:
    """Draw what `scaling_data` returned, a panel per group.

    Lines are medians, bands the 20th to 80th percentile; a cross marks a length without a number,
    explained under the figure. `title` is by default that of a cost per sequence.
    """
    mode, quantity = str(data["mode"].iloc[0]), str(data["quantity"].iloc[0])
    names = list(dict.fromkeys(data["model"]))
    found = panels(names, groups)
    rows = ceil(len(found) / _ACROSS)
    across = min(_ACROSS, len(found))
    absent = set(data[data["value"].isna()]["model"])
    crosses = max(len(absent.intersection(own)) for own in found.values())
    names_high = _NAME * max(len(own) for own in found.values())
    cell = _PLOT + names_high + 0.95
    with style():
        lines = [
            part
            for note in why_absent(data)
            for part in textwrap.wrap(note, 52 * across, subsequent_indent="    ")
        ]
        foot, head = 0.15 * len(lines) + 0.1, 0.55
        width, height = _WIDE * across + 0.15, cell * rows + head + foot
        figure = new_figure(width=width, height=height)
        for number, (kind, own) in enumerate(found.items()):
            row, column = divmod(number, _ACROSS)
            left = (_WIDE * column + 0.72) / width
            bottom = (foot + cell * (rows - 1 - row) + 0.6) / height
            axes = figure.add_axes((left, bottom, 2.72 / width, _PLOT / height))
            set_axes(axes, data, quantity, crosses=crosses)
            for name in (n for n in BACKGROUND if n in names):
                grey = Look(_GREYS[name], "", ())
                draw_line(axes, data[data["model"] == name], grey, label=name)
            order = by_last_value(data, own)
            handles = [draw_line(axes, data[data["model"] == n], looks[n]) for n in order]
            for handle in handles:
                handle.set_markersize(4.5)
            draw_crosses(axes, data[data["model"].isin(own)], looks, order)
            _name_background(axes, data, names)
            axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(-0.02, 1), fontsize=6.6,
                        frameon=False, borderaxespad=0.2, handlelength=3.2)  # fmt: skip
            axes.set_title(kind, size=8.5, loc="left", pad=72 * _NAME * len(own) + 7)
            axes.tick_params(labelsize=6.5)
            axes.tick_params(axis="x", rotation=35)
            if row == rows - 1 or number + _ACROSS >= len(found):
                axes.set_xlabel("sequence length (tokens)", size=7.5)
        title = title or f"{QUANTITIES[quantity].capitalize()}, {describe_pass(mode)}"
        if across == 1:  # no room for what the pass consists of
            title = title.partition(" (")[0]
        size = 10 if across > 1 else 8.5
        figure.text(0.08 / width, 1 - 0.17 / height, title, va="center", weight="bold", size=size)
        about = f"{subtitle}; in brackets the exponent of length with its 95 % interval"
        figure.text(
            0.08 / width, 1 - 0.36 / height, about.removeprefix("; "),
            va="center", size=7.5, color="0.35",
        )  # fmt: skip
        for number, line in enumerate(lines):
            y = (foot - 0.15 * (number + 0.7)) / height
            figure.text(0.08 / width, y, line, va="center", size=6.8, color="0.25")
    return figure


def _name_background(axes: object, data: pd.DataFrame, names: Sequence[str]) -> None:
    """Write the references' names at the ends of their lines."""
    for name in (n for n in BACKGROUND if n in names):
        own = data[(data["model"] == name) & data["value"].notna()]
        if len(own):
            last = own.iloc[-1]
            axes.annotate(  # type: ignore[attr-defined]
                name,
                (float(last["length"]), float(last["value"])),
                xytext=(-2, -8) if name == "identity" else (-2, 4),
                textcoords="offset points",
                ha="right",
                size=6,
                color="0.35",
            )
