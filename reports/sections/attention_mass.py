"""Show attention mass by region and age of keys, in a figure with bars and in a table."""

from collections.abc import Collection
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from lra.reports.figures.small_multiples import draw_panels
from lra.reports.rows import with_labels
from lra.reports.sections.section import PagesPart, Section, alike
from lra.reports.tables.marks import missing_entry
from lra.reports.tables.pivot import ALL, Pivot
from lra.reports.tables.places import by_place, place_words, summaries
from lra.reports.tables.scores import TASK
from lra.reports.tables.table import Column, Entry

REGIONS = ("compressed", "memory", "segment")
COLORS = {"compressed": "#CC79A7", "memory": "#0072B2", "segment": "#E69F00"}
COLUMNS = (
    *TASK, "model", "layer", "region", "bucket", "mass", "error", "seeds", "status", "reason",
)  # fmt: skip


def mass_data(rows: pd.DataFrame) -> pd.DataFrame:
    """Return mean mass and standard error by task, model, layer, region and bucket of keys.

    If all runs of a mean failed, the line has the reason instead.
    """
    measured = rows["metric"].isin(("attention_mass", "attention_mass_error"))
    masses = with_labels(rows[measured], ("layer", "region", "bucket"), ALL)
    records = summaries(masses, (*TASK, "name", "layer", "region", "bucket"), _mass_and_error)
    return pd.DataFrame(records, columns=list(COLUMNS))


def _mass_and_error(rows: pd.DataFrame) -> dict[str, Any]:
    """Return the means of both metrics over the rows; None for a metric without rows."""
    means = rows.groupby("metric")["value"].mean()
    return {"mass": means.get("attention_mass"), "error": means.get("attention_mass_error")}


def mass_figure(data: pd.DataFrame) -> Figure:
    """Return a figure of data from `mass_data`, with a panel for each task and model."""
    drawn = data[data["mass"].notna() & (data["bucket"] != ALL)]
    panels = []
    for (*place, model), part in by_place(drawn, (*TASK, "model")):
        task, facts = place_words(TASK, (*place,), untold=["task_version"])
        panels.append(((f"{model}, {task}", facts), part))
    return draw_panels(
        panels, _draw_masses, title="Attention mass by age of keys",
        subtitle="the oldest keys are at the left; bars: means over layers, with standard errors "
        "over sequences", plot=(3.3, 2.0), handles=partial(_handles, {*drawn["region"]}),
    )  # fmt: skip


def _handles(regions: Collection[str]) -> list[Artist]:
    """Return the handles of the legend: a bar for each region, and a point for a layer."""
    shown = [region for region in REGIONS if region in regions]
    bars = [Patch(color=COLORS[region], label=region) for region in shown]
    return [*bars, Line2D([], [], linestyle="none", marker=".", color="0.3", label="a layer")]


def _draw_masses(axes: Axes, data: pd.DataFrame) -> None:
    """Draw the buckets of each region side by side, as bars over layers and points of layers."""
    first, ticks = 0, []  # `first`: the place of the region's first bar, from the left
    for region in REGIONS:
        part = data[data["region"] == region]
        buckets = sorted({int(bucket) for bucket in part["bucket"]})
        for layer, line in part.groupby("layer"):
            x = first + np.array([buckets.index(int(bucket)) for bucket in line["bucket"]])
            mass = line["mass"].astype(float)
            if layer == ALL:
                axes.bar(
                    x, mass, width=0.9, color=COLORS[region], zorder=2,
                    yerr=line["error"].astype(float).fillna(0.0), ecolor="black",
                    error_kw={"linewidth": 0.8},
                )  # fmt: skip
            else:
                axes.plot(
                    x, mass, linestyle="none", marker=".", markersize=5, color="0.15", zorder=4
                )
        if buckets:
            ticks.append((first + (len(buckets) - 1) / 2, region))
            first += len(buckets)
            axes.axvline(first - 0.5, color="0.7", linewidth=0.7, zorder=1)
    axes.set_xlim(-0.6, first - 0.4)
    axes.set_ylim(bottom=0)
    axes.set_xticks([place for place, _ in ticks], [region for _, region in ticks])
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False, axis="x")
    axes.set_ylabel("attention mass")


def _layers(data: pd.DataFrame) -> dict[str, str]:
    """Return the layers by title, and then the mean over all layers."""
    layers = sorted(set(data["layer"]) - {ALL}, key=int)
    return {**{f"layer {layer}": layer for layer in layers}, "all layers": ALL}


def _mass_entry(data: pd.DataFrame, layer: str, region: str) -> Entry:
    """Return the mass of a region in one layer, with its standard error as a fact."""
    line = data[(data["layer"] == layer) & (data["region"] == region) & (data["bucket"] == ALL)]
    measured = line[line["mass"].notna()]
    if len(measured):
        row = measured.iloc[0]
        facts = {} if pd.isna(row["error"]) else {"standard_error": float(row["error"])}
        return Entry(text=f"{row['mass']:.3f}", value=float(row["mass"]), facts=facts)
    return missing_entry(data[data["status"] != "ok"])


mass_table = Pivot(
    title="Attention mass by region",
    caption="A number is the fraction of a query's attention that goes to keys of a region. It is "
    "a mean over heads, queries, sequences and seeds, for segments that come after the memories "
    "of the model are full.",
    stub="layer",
    lines=_layers,
    columns=[(Column(title=region), partial(_mass_entry, region=region)) for region in REGIONS],
    marks=True,
)
section = Section(
    name="attention-mass",
    heading="Attention mass by region",
    data=mass_data,
    table=mass_table,
    figure=PagesPart(
        "attention-mass-by-age", "Attention mass by age",
        "attention to compressed memory, memory and segment, by age of keys", alike(mass_figure),
        panel=(*TASK, "model"), number="mass",
    ),
)  # fmt: skip
