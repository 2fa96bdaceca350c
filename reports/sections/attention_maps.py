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
    """Return values by task, model, metric and labels: means over seeds.

    A measure that a model does not allow has a line with the reason; so has a cell that failed.
    """
    maps = with_labels(rows[rows["runner"] == "attention_maps"], LABELS)
    keys = [*TASK, "name", "metric", *LABELS]
    measured = maps[maps["metric"].isin(COLUMNS)]
    records = summaries(measured, keys, _mean, sort=False)
    columns = [*TASK, "model", "metric", *LABELS, "value", "seeds", "status", "reason"]
    data = pd.DataFrame(records, columns=columns)
    place = {name: number for number, name in enumerate(model_order([*data["model"]]))}
    order = data.assign(place=data["model"].map(place), number=pd.to_numeric(data["layer"]))
    return data.loc[order.sort_values([*TASK, "place", "number"], kind="stable").index]


def _mean(good: pd.DataFrame) -> dict[str, Any]:
    return {"value": good["value"].astype(float).mean()}


def map_table(data: pd.DataFrame) -> Table:
    """Build the table of means over heads, by model and layer."""
    data = data.assign(title=[_title(row) for row in data.to_dict("records")])
    named = data[data["title"] != ""]
    titles = dict(zip(named["title"], named["metric"], strict=True))
    return Pivot(
        title="Attention by layer",
        caption="Means over heads, queries, examples and seeds. Distances are in tokens. Within "
        "w: the fraction of attention to tokens at most w away. ¼ of singular values: the "
        "fraction of their sum that the largest quarter contributes, in matrices of attention "
        "weights. ¼ of dimensions: the fraction of the energy of W_Q W_K^T in the largest "
        "quarter, for each head and for all heads together.",
        stub="layer",
        lines=_layers,
        columns=[
            (Column(title=title), partial(_mean_entry, title=title, metric=metric))
            for title, metric in titles.items()
        ],
    )(data)


def _layers(data: pd.DataFrame) -> dict[str, str]:
    layers = sorted({*data["layer"][data["title"] != ""]}, key=int)
    return {f"layer {layer}": layer for layer in layers} or {ALL: ""}


def _title(row: dict[Any, Any]) -> str:
    heads = "all heads" if row["head"] == ALL else "a head"
    if row["status"] != "ok":
        return ""
    return COLUMNS[row["metric"]].format(within=row["within"], heads=heads)


def _mean_entry(data: pd.DataFrame, layer: str, title: str, metric: str) -> Entry:
    good = data[(data["layer"] == layer) & (data["title"] == title)]
    if len(good):
        value = float(good["value"].mean())
        return Entry(text=significant(value), value=value)
    near = (data["metric"] == metric) | (data["metric"] == "attention_distance")
    return missing_entry(data[(data["status"] != "ok") & near & data["layer"].isin(["", layer])])


def section(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield the tables, and the figure of distances."""
    maps = rows[rows["runner"] == "attention_maps"]
    if maps.empty:
        return
    data = map_data(rows)
    if len(data):
        yield TablePart("attention-maps", "Attention by layer", map_table(data))
    distances = partial(
        span_figure, title="Attention distance",
        subtitle="a point for each head: mean distance of the tokens that it attends to",
    )  # fmt: skip
    yield PagesPart(
        "attention-distance", "Attention distance", "mean attention distance by layer and head",
        distances, panel=TASK, number="span", data=distance_data(rows),
    )  # fmt: skip
    yield from generic_tables(maps[maps["metric"].isin(OTHERS)], {})
