"""Training loss against optimiser step: small multiples, one panel per task."""

from collections.abc import Sequence
from typing import Any, cast

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from reports.drawing import Look, new_figure, style
from reports.rows import model_order, shown

COLUMNS = ("task", "task_version", "source", "model", "step", "loss", "low", "high", "seeds")
_PANELS = 2
"""Panels side by side."""


def loss_data(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the loss curves: mean over the seeds that reached a step, with their extremes."""
    curve = rows[(rows["metric"] == "train_loss") & rows["step"].notna() & (rows["status"] == "ok")]
    records = []
    for key, part in curve.groupby(["task", "task_version", "source", "name", "step"], sort=True):
        values = part["value"].astype(float)
        place = cast(tuple[Any, ...], key)
        records.append((*place, values.mean(), values.min(), values.max(), part["seed"].nunique()))
    data = pd.DataFrame(records, columns=list(COLUMNS))
    return data.astype({"step": int}) if len(data) else data


def loss_figure(data: pd.DataFrame, looks: dict[str, Look]) -> Figure:
    """Draw what `loss_data` returned: lines are means over seeds, bands their extremes."""
    keys = list(dict.fromkeys(zip(data["task"], data["task_version"], data["source"], strict=True)))
    across = min(_PANELS, len(keys))
    down = -(-len(keys) // across)
    with style():
        figure = new_figure(width=4.9 if across == 1 else 7.4, height=2.75 * down)
        figure.set_layout_engine("constrained")
        panels = figure.subplots(down, across, squeeze=False)
        for axes, key in zip(panels.ravel(), keys, strict=False):
            own = data[(data["task"] == key[0]) & (data["task_version"] == key[1])]
            own = own[own["source"] == key[2]]
            names = model_order([str(n) for n in own["model"]])
            _draw(axes, own, names, looks)
            axes.set_title(f"{key[0]} ({key[2]}, version {shown(key[1])})")
            axes.set_xlabel("optimiser step")
            axes.set_ylabel("training loss (nat)")
            axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
        for axes in panels.ravel()[len(keys) :]:
            axes.set_axis_off()
        drawn = {line.get_label(): line for axes in panels.ravel() for line in axes.get_lines()}
        order = [n for n in model_order([str(n) for n in drawn]) if n in drawn]
        figure.legend(handles=[drawn[n] for n in order], loc="outside right center")
    return figure


def _draw(axes: Axes, own: pd.DataFrame, names: Sequence[str], looks: dict[str, Look]) -> None:
    for name in names:
        line = own[own["model"] == name]
        look = looks[name]
        steps = line["step"].astype(float)
        axes.plot(
            steps,
            line["loss"],
            color=look.color,
            linestyle=(0, look.dashes) if look.dashes else "-",
            marker=look.marker,
            markersize=3.5,
            markevery=max(1, len(line) // 6),
            markerfacecolor="white" if look.marker in "sDv" else look.color,
            linewidth=1.2,
            label=name,
        )
        if (line["seeds"] > 1).any():
            axes.fill_between(
                steps, line["low"], line["high"], color=look.color, alpha=0.12, linewidth=0
            )
