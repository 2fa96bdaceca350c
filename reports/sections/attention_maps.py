"""Attention maps as a table and figures: locality, spectra, dimensions, kernels, similarity."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from lra.reports.figures.attention_maps import (
    ALL,
    LAYER,
    LETTERS,
    MODEL,
    Colors,
    Picture,
    energy_figure,
    kernel_figure,
    picture_figure,
    spectrum_figure,
    within_figure,
)
from lra.reports.rows import model_order, with_labels
from lra.reports.sections.section import PagesPart, Part, TablePart, alike
from lra.reports.sections.spans import span_data, span_figure
from lra.reports.tables.costs import significant
from lra.reports.tables.marks import lost
from lra.reports.tables.places import by_place, place_columns, summaries
from lra.reports.tables.scores import TASK
from lra.reports.tables.table import Entry, Table, TableRow

LABELS = ("layer", "head", "within", "row", "positions", "left", "token", "other", "score")
COLUMNS = {
    "attention_distance": "mean distance",
    "attention_entropy": "entropy (nat)",
    "attention_within": "within {within}",
    "singular_value_share": "¼ of singular values",
    "projection_energy": "¼ of dimensions, {heads}",
}
METRICS = (
    *COLUMNS, "attention_map", "kernel_weight", "kernel_deviation", "attention_similarity",
    "substitution_correlation",
)  # fmt: skip
PAIR = (*TASK, "model", "kind")


def map_data(rows: pd.DataFrame) -> pd.DataFrame:
    """Return values and curves by task, model, metric and labels: means over seeds.

    A measure that a model does not allow has a line with the reason; so has a cell that failed.
    """
    maps = with_labels(rows[rows["runner"] == "attention_maps"], LABELS)
    keys = [*TASK, "name", "metric", *LABELS]
    measured = maps[maps["metric"].isin(METRICS)]
    records = ({"samples": (), **each} for each in summaries(measured, keys, _means, sort=False))
    columns = [*TASK, "model", "metric", *LABELS, "value", "samples", "seeds", "status", "reason"]
    data = pd.DataFrame(records, columns=columns)
    place = {name: number for number, name in enumerate(model_order([*data["model"]]))}
    order = data.assign(place=data["model"].map(place), number=pd.to_numeric(data["layer"]))
    return data.loc[order.sort_values([*TASK, "place", "number"], kind="stable").index]


def _means(good: pd.DataFrame) -> dict[str, Any]:
    lengths = {len(curve) for curve in good["samples"]}
    curves = np.array(list(good["samples"])).mean(0) if len(lengths) == 1 else np.array([])
    return {"value": good["value"].astype(float).mean(), "samples": tuple(curves)}


def curves_of(data: pd.DataFrame) -> pd.DataFrame:
    """Return what is plotted of curves as a line for each of their numbers, for a CSV file."""
    if not data["samples"].map(len).any():
        return without_curves(data)
    places = pd.Series([[*range(1, len(curve) + 1)] for curve in data["samples"]], index=data.index)
    lists = [name for name in ("samples", "deviation") if name in data]
    long = data.assign(place=places).explode([*lists, "place"], ignore_index=True)
    return long.drop(columns=["value"]).rename(columns={"samples": "value"})


def without_curves(data: pd.DataFrame) -> pd.DataFrame:
    """Return single numbers alone, for a CSV file."""
    return data.drop(columns=["samples"])


def map_table(data: pd.DataFrame) -> Table:
    """Build the table of means over heads, by model and layer."""
    data = data.assign(title=[_title(row) for row in data.to_dict("records")])
    places = by_place(data)
    named = data[data["title"] != ""]
    titles = dict(zip(named["title"], named["metric"], strict=True))
    rows = []
    for name in model_order([str(n) for n in data["model"]]):
        mine = data[data["model"] == name]
        for layer in sorted({*mine["layer"][mine["title"] != ""]}, key=int) or [""]:
            entries = []
            for _, part in places:
                at = part[part["model"] == name]
                entries += [_mean_entry(at, layer, *title) for title in titles.items()]
            stub = f"layer {layer}" if layer else ALL
            rows.append(TableRow(title=stub, entries=tuple(entries), section=name))
    return Table(
        title="Attention by layer",
        caption="Means over heads, queries, examples and seeds. Distance in tokens; within w: "
        "share of attention to tokens at most w away; ¼ of singular values: their share of the sum "
        "of all, of matrices of weights; ¼ of dimensions: captured energy of W_Q W_K^T, of each "
        "head and of all heads beside each other.",
        stub="layer",
        columns=place_columns([place for place, _ in places], titles),
        rows=tuple(rows),
    )


def _title(row: dict[Any, Any]) -> str:
    heads = "all heads" if row["head"] == ALL else "a head"
    if row["status"] != "ok" or row["metric"] not in COLUMNS:
        return ""
    return COLUMNS[row["metric"]].format(within=row["within"], heads=heads)


def _mean_entry(data: pd.DataFrame, layer: str, title: str, metric: str) -> Entry:
    good = data[(data["layer"] == layer) & (data["title"] == title)]
    if len(good):
        value = float(good["value"].mean())
        return Entry(text=significant(value), value=value)
    near = (data["metric"] == metric) | (data["metric"] == "attention_distance")
    return lost(data[(data["status"] != "ok") & near & data["layer"].isin(["", layer])])


def _map(data: pd.DataFrame) -> Picture:
    cells = max(len(samples) for samples in data["samples"])
    values = np.full((cells, cells), np.nan)
    for row, samples in zip(data["row"], data["samples"], strict=True):
        values[int(row)] = samples
    return Picture(values, positions=int(data["positions"].iloc[0]))


def _by_head(data: pd.DataFrame) -> Picture:
    layers = sorted({int(layer) for layer in data["layer"]})
    heads = sorted({int(head) for head in data["head"]})
    values = np.full((len(layers), len(heads)), np.nan)
    for layer, head, value in zip(data["layer"], data["head"], data["value"], strict=True):
        values[layers.index(int(layer)), heads.index(int(head))] = value
    return Picture(values, [*map(str, layers)], [*map(str, heads)])


def _pairs(data: pd.DataFrame) -> Picture:
    names = sorted({*data["token"], *data["other"]})
    values = np.full((len(names), len(names)), np.nan)
    for one, other, value in zip(data["token"], data["other"], data["value"], strict=True):
        i, j = names.index(one), names.index(other)
        values[i, j] = values[j, i] = value
    return Picture(values, names, names)


def _with_scores(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return similarities and, as a further panel, substitution scores; all within ±1."""
    scores = pairs["score"].astype(float)
    both = [
        pairs.assign(kind="attention"),
        pairs.assign(kind="BLOSUM62", value=scores / scores.abs().max()),
    ]
    return pd.concat(both, ignore_index=True)


def _with_deviations(means: pd.DataFrame, deviations: pd.DataFrame) -> pd.DataFrame:
    """Return kernels with how far those of single tokens lie from them, 0 where all are one."""
    keys = [*TASK, "model", "layer", "head"]
    places = zip(*(deviations[key].astype(str) for key in keys), strict=True)
    by_place = dict(zip(places, deviations["samples"], strict=True))
    kernels = zip(*(means[key].astype(str) for key in keys), means["samples"], strict=True)
    bands = [by_place.get(tuple(key), (0.0,) * len(taps)) for *key, taps in kernels]
    return means.assign(deviation=pd.Series(bands, index=means.index))


FIGURES = (
    ("attention_within", PagesPart(
        "attention-within", "Attention near its query", "attention near its query",
        alike(within_figure), panel=MODEL,
    )),
    ("attention_map", PagesPart(
        "attention-map", "Average attention maps", "average attention maps",
        alike(partial(
            picture_figure, keys=LAYER, picture=_map, title="Average attention maps",
            subtitle="mean over examples and heads; positions are summed in cells",
            labels=("key", "query"), colors=Colors.root, words="share of a query's attention",
        )),
        panel=LAYER,
    )),
    ("singular_value_share", PagesPart(
        "attention-spectrum", "Spectrum of attention matrices", "spectrum of attention matrices",
        alike(spectrum_figure), panel=MODEL,
    )),
    ("singular_value_share", PagesPart(
        "attention-spectrum-quarter", "Spectrum at a quarter, by layer and head",
        "spectrum at a quarter, by layer and head",
        alike(partial(
            picture_figure, keys=MODEL, picture=_by_head, title="Spectrum at a quarter",
            subtitle="share of the sum of all singular values that the largest quarter has",
            labels=("head", "layer"), colors=Colors.between, words="share",
        )),
        panel=MODEL, written=without_curves,
    )),
    ("projection_energy", PagesPart(
        "projection-energy", "Key-query products by dimensions",
        "key-query products by dimensions", alike(energy_figure), panel=MODEL,
    )),
    ("kernel_weight", PagesPart(
        "kernels", "Kernels of convolutions", "kernels of convolutions", alike(kernel_figure),
        panel=LAYER,
    )),
    ("attention_similarity", PagesPart(
        "amino-acids", "Similarity of amino acids", "similarity of amino acids",
        alike(partial(
            picture_figure, keys=PAIR, picture=_pairs, title="Similarity of amino acids", across=2,
            subtitle="correlation over heads of the attention that two of them get; beside it "
            "BLOSUM62 over its largest entry", labels=("", ""), colors=Colors.around,
            words="similarity", plot=LETTERS,
        )),
        panel=PAIR,
    )),
)  # fmt: skip
"""Of each metric."""


def section(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield the table, and the figure of every metric that a model allows."""
    if not (rows["runner"] == "attention_maps").any():
        return
    data = map_data(rows)
    yield TablePart("attention-maps", "Attention by layer", map_table(data))
    distances = partial(
        span_figure, title="Attention distance",
        subtitle="a point for each head: mean distance of what it attends to",
    )  # fmt: skip
    yield PagesPart(
        "attention-distance", "Attention distance", "mean attention distance by layer and head",
        distances, panel=TASK, number="span", data=span_data(rows, "attention_distance"),
    )  # fmt: skip
    good = data[data["value"].notna()]
    for metric, figure in FIGURES:
        drawn = good[good["metric"] == metric]
        if drawn.empty:
            continue
        if metric == "kernel_weight":
            drawn = _with_deviations(drawn, good[good["metric"] == "kernel_deviation"])
        elif metric == "attention_similarity":
            drawn = _with_scores(drawn)
        yield figure._replace(data=drawn, written=figure.written or curves_of)
