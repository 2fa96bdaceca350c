"""Show accuracy by the length of a sequence and the depth of what decides the answer."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lra.reports.figures.small_multiples import draw_panels
from lra.reports.rows import model_order
from lra.reports.sections.section import Looks, PagesPart
from lra.reports.tables.places import by_place, place_words
from lra.reports.tables.scores import TASK

LENGTH_AND_DEPTH = "length_and_depth"
"""The group of scores whose part is the length times `DEPTHS`, plus the depth in percent."""
DEPTHS = 100
DARK = 0.6
"""Numbers on squares of a higher accuracy are white."""


def depth_maps(data: pd.DataFrame) -> Iterator[PagesPart]:
    """Yield the heat map, with a panel for each model, of data from `score_groups.group_data`."""
    measured = data[(data["group"] == LENGTH_AND_DEPTH) & (data["status"] == "ok")]
    if measured.empty:
        return
    part = measured["part"].astype(int)
    measured = measured.assign(at=part // DEPTHS, depth=part % DEPTHS)
    keys = [*TASK, "model", "at", "depth"]
    points = measured.groupby(keys, dropna=False, sort=False)["value"].mean().reset_index()
    place = {name: number for number, name in enumerate(model_order([*points["model"]]))}
    points = points.sort_values("model", key=lambda names: names.map(place), kind="stable")
    yield PagesPart(
        "accuracy-by-length-and-depth", "Accuracy by length and depth",
        "accuracy of test sequences by length and depth",
        draw_maps, panel=(*TASK, "model"), lines=None,
        data=points.assign(status="ok", reason=""),
    )  # fmt: skip


def draw_maps(data: pd.DataFrame, looks: Looks) -> Figure:
    """Return the figure of one page."""
    del looks
    places = {}
    for place, part in by_place(data):
        task, facts = place_words(TASK, place, untold=("task_version", "length"))
        places[f"{task} ({facts})"] = part
    parts = [
        ((str(name), facts if len(places) > 1 else ""), part)
        for facts, here in places.items()
        for name, part in here.groupby("model", sort=False)
    ]
    return draw_panels(
        parts, _draw_map, title="Accuracy by length and depth",
        subtitle="percent, mean over seeds; depth: the place of what decides the answer, in "
        "percent of the sequence, from its beginning",
        plot=(2.6, 2.2), lines=False, notes=[] if len(places) > 1 else [*places],
    )  # fmt: skip


def _draw_map(axes: Axes, part: pd.DataFrame) -> None:
    """Draw the squares of one model: lengths from left to right, depths downwards."""
    grid = part.pivot(index="depth", columns="at", values="value").sort_index()
    axes.imshow(grid.to_numpy(float), vmin=0, vmax=1, cmap="Blues", aspect="auto")
    axes.set_xticks(range(len(grid.columns)), [f"{length:,}" for length in grid.columns])
    axes.set_yticks(range(len(grid.index)), [str(depth) for depth in grid.index])
    axes.set_xlabel("length")
    axes.set_ylabel("depth (%)")
    axes.grid(visible=False)
    axes.minorticks_off()
    for row, line in enumerate(grid.to_numpy(float)):
        for column, value in enumerate(line):
            if not np.isnan(value):  # a part without sequences has no number
                color = "white" if value > DARK else "black"
                text = f"{100 * value:.0f}"
                axes.text(column, row, text, ha="center", va="center", size=6, color=color)
