"""Attention maps as tables: locality, spectra, dimensions, kernels, similarity."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pandas as pd

from lra.reports.rows import model_order, with_labels
from lra.reports.sections.generic import generic_tables
from lra.reports.sections.section import PagesPart, Part, TablePart
from lra.reports.sections.spans import LABELS as SPAN_LABELS, span_figure
from lra.reports.tables.costs import significant
from lra.reports.tables.marks import missing_entry
from lra.reports.tables.pivot import ALL, Pivot, SeedMeans
from lra.reports.tables.places import summaries
from lra.reports.tables.scores import TASK
from lra.reports.tables.table import Column, Entry, Table

LABELS = ("layer", "head", "within")
COLUMNS = {
    "attention_distance": "mean distance",
    "attention_entropy": "entropy (nat)",
    "attention_within": "within {within}",
    "singular_value_share": "¼ of singular values",
    "projection_energy": "¼ of dimensions, {heads}",
}
OTHERS = (
    "kernel_weight", "kernel_deviation", "attention_similarity", "substitution_correlation",
)  # fmt: skip
"""Metrics whose table has a line for each of their labels."""
distance_data = SeedMeans(metrics=["attention_distance"], labels=SPAN_LABELS, value="span")


def map_data(rows: pd.DataFrame) -> pd.DataFrame:
    """Return means over seeds by task, model, metric and labels.

    If a model does not support a measure, or a run failed, the line has the reason instead.
    """
    maps = with_labels(rows[rows["runner"] == "attention_maps"], LABELS)
    keys = [*TASK, "name", "metric", *LABELS]
    measured = maps[maps["metric"].isin(COLUMNS)]
    records = summaries(measured, keys, _mean_value, sort=False)
    columns = [*TASK, "model", "metric", *LABELS, "value", "seeds", "status", "reason"]
    data = pd.DataFrame(records, columns=columns)
    place = {name: number for number, name in enumerate(model_order([*data["model"]]))}
    order = data.assign(place=data["model"].map(place), number=pd.to_numeric(data["layer"]))
    return data.loc[order.sort_values([*TASK, "place", "number"], kind="stable").index]


def _mean_value(rows: pd.DataFrame) -> dict[str, Any]:
    return {"value": rows["value"].astype(float).mean()}


def map_table(data: pd.DataFrame) -> Table:
    """Return the table of means over heads, by model and layer, of data from `map_data`."""
    data = data.assign(title=[_column_title(row) for row in data.to_dict("records")])
    named = data[data["title"] != ""]
    titles = dict(zip(named["title"], named["metric"], strict=True))
    return Pivot(
        title="Attention by layer",
        caption="Numbers are means over heads, queries, examples and seeds. Distances are in "
        "tokens. Within w: the fraction of a query's attention that goes to tokens at most w away. "
        "¼ of singular values: for a matrix of attention weights, the sum of the largest quarter "
        "of singular values divided by the sum of all. ¼ of dimensions: for W_Q W_K^T, the sum "
        "of squares of the largest quarter of singular values divided by that of all, for each "
        "head and for all heads together.",
        stub="layer",
        lines=_layers,
        columns=[
            (Column(title=title), partial(_mean_entry, title=title, metric=metric))
            for title, metric in titles.items()
        ],
    )(data)


def _layers(data: pd.DataFrame) -> dict[str, str]:
    """Return the measured layers by title; if all runs failed, one line for their reason."""
    layers = sorted({*data["layer"][data["title"] != ""]}, key=int)
    return {f"layer {layer}": layer for layer in layers} or {ALL: ""}


def _column_title(row: dict[Any, Any]) -> str:
    """Return the title of the column for a row; "" for a failure."""
    heads = "all heads" if row["head"] == ALL else "a head"
    if row["status"] != "ok":
        return ""
    return COLUMNS[row["metric"]].format(within=row["within"], heads=heads)


def _mean_entry(data: pd.DataFrame, layer: str, title: str, metric: str) -> Entry:
    """Return the mean over heads of a layer in the column `title`, or the reason of a failure."""
    measured = data[(data["layer"] == layer) & (data["title"] == title)]
    if len(measured):
        value = float(measured["value"].mean())
        return Entry(text=significant(value), value=value)
    # a run that failed as a whole has its reason in a row of attention_distance
    related = (data["metric"] == metric) | (data["metric"] == "attention_distance")
    failed = data[(data["status"] != "ok") & related & data["layer"].isin(["", layer])]
    return missing_entry(failed)


def section(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield the tables of attention maps, and the figure of distances."""
    maps = rows[rows["runner"] == "attention_maps"]
    if maps.empty:
        return
    data = map_data(rows)
    if len(data):
        yield TablePart("attention-maps", "Attention by layer", map_table(data))
    distances = partial(
        span_figure, title="Attention distance",
        subtitle="each point is a head: the mean distance of the tokens that it attends to",
    )  # fmt: skip
    yield PagesPart(
        "attention-distance", "Attention distance", "mean attention distance by layer and head",
        distances, panel=TASK, number="span", data=distance_data(rows),
    )  # fmt: skip
    yield from generic_tables(maps[maps["metric"].isin(OTHERS)], {})
