"""Show over which distances trained models depend on tokens, for each head and whole models."""

from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from lra.reports.figures.drawing import Look, legend_name, named_looks
from lra.reports.figures.findings import FEW
from lra.reports.figures.small_multiples import draw_panels
from lra.reports.rows import model_order
from lra.reports.sections.section import PagesPart, Section
from lra.reports.tables.costs import significant
from lra.reports.tables.marks import missing_entry
from lra.reports.tables.pivot import ALL, Pivot, SeedMeans
from lra.reports.tables.places import by_place, place_words
from lra.reports.tables.scores import TASK
from lra.reports.tables.table import Column, Entry

MEASURES = ("attention", "gradient", "occlusion")
LABELS = ("measure", "layer", "head")
_PLOT = (3.3, 2.2)
"""Width and height of a plot with few columns, in inches."""


span_data = SeedMeans(metrics=["span"], labels=LABELS, value="span")


def span_figure(
    data: pd.DataFrame,
    looks: dict[str, Look],
    *,
    title: str = "How far trained models look",
    subtitle: str = "layers: each point is a head; gradient and occlusion: the whole model",
) -> Figure:
    """Return a figure of data from `span_data`: a panel for each task, a column for each layer."""
    drawn = data[data["span"].notna()]
    names = model_order([*drawn["model"].astype(str)])
    looks, places = named_looks(looks, names, lines=False), by_place(drawn)
    columns = max(drawn.loc[drawn["layer"] != ALL, "layer"].nunique() + 2, 2)
    plot = (max(_PLOT[0], 0.55 * columns), _PLOT[1])
    return draw_panels(
        [(place_words(TASK, place), part) for place, part in places],
        partial(_draw_spans, looks=looks), subtitle=subtitle, plot=plot,
        across=2 if plot == _PLOT else 1,
        title=_longest_title(drawn) if len(places) == 1 and len(names) > 1 else title,
    )  # fmt: skip


def _longest_title(data: pd.DataFrame) -> str:
    """Return a title with the longest spans of models, by occlusion or else by their heads."""
    occlusion = data[(data["head"] == ALL) & (data["measure"] == "occlusion")]
    spans = (occlusion if len(occlusion) else data).groupby("model")["span"].max().astype(float)
    longest = spans.sort_values(ascending=False, kind="stable")[:FEW]
    texts = [f"{name} {significant(span, 2)} tokens" for name, span in longest.items()]
    return f"Longest span {'by occlusion' if len(occlusion) else 'of a head'}: {', '.join(texts)}"


def _draw_spans(axes: Axes, data: pd.DataFrame, looks: dict[str, Look]) -> dict[str, Line2D]:
    """Draw one panel; models are side by side in each column. Return their legend handles."""
    heads = data[(data["head"] != ALL) & (data["layer"] != ALL)]
    layers = sorted({int(layer) for layer in heads["layer"]})
    model_measures = [m for m in MEASURES[1:] if m in set(data["measure"])]
    columns = [f"layer {layer}" for layer in layers] + model_measures
    names = model_order([str(name) for name in data["model"]])
    handles = {}
    for number, name in enumerate(names):
        look = looks[name]
        # The models share 0.7 of the width of a column.
        offset = 0.7 * ((number + 0.5) / len(names) - 0.5)
        of_model = data[data["model"] == name]
        is_head = of_model["head"] != ALL
        x, spans = [], []
        for column, title in enumerate(columns):
            if column < len(layers):
                points = of_model[is_head & (of_model["layer"] == str(layers[column]))]
            else:
                points = of_model[~is_head & (of_model["measure"] == title)]
            spans += [float(value) for value in points["span"]]
            x += [column + offset] * len(points)
        (handles[name],) = axes.plot(
            x, spans, linestyle="none", marker=look.marker, markersize=5, color=look.color,
            markerfacecolor="white" if look.marker in "sDv" else look.color,
            label=legend_name(name), zorder=3,
        )  # fmt: skip
    axes.set_xlim(-0.5, max(1, len(columns)) - 0.5)
    axes.set_xticks(range(len(columns)), columns)
    axes.grid(visible=False, axis="x")
    for border in np.arange(0.5, len(columns) - 1):
        axes.axvline(border, color="0.88", linewidth=0.5, zorder=0)
    axes.set_yscale("symlog", base=2, linthresh=1)
    top = float(data["span"].max())
    powers = [0.0, *(2.0**power for power in range(int(np.ceil(np.log2(max(1.0, top)))) + 1))]
    axes.set_ylim(-0.15, powers[-1] * 1.2)
    # Ticks are at 0 and at no more than eight powers of two.
    axes.set_yticks(powers[:1] + powers[1:][:: -(-len(powers[1:]) // 8)])
    axes.set_yticks([], minor=True)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_ylabel("span (tokens)")
    return handles


def _attention_entry(data: pd.DataFrame, end: str = "") -> Entry:
    """Return the mean span over heads; with `end` = `min` or `max`, the shortest or longest."""
    heads = data[(data["head"] != ALL) & data["span"].notna()]["span"].astype(float)
    value = float(heads.agg(end)) if end and len(heads) else None
    return _model_entry(data, "attention", value)


def _model_entry(data: pd.DataFrame, measure: str, value: float | None = None) -> Entry:
    """Return `value`, or if it is None, the span of the whole model, or the reason of a failure."""
    rows = data[(data["measure"] == measure) & (data["head"] == ALL)]
    measured = rows[rows["span"].notna()]
    if value is None and len(measured):
        value = float(measured["span"].iloc[0])
    if value is not None:
        return Entry(text=significant(value), value=value)
    failed = data[(data["measure"] == ALL) & (data["status"] != "ok")]
    return missing_entry(rows if len(rows) else failed, "not measured")


span_table = Pivot(
    title="How far trained models look",
    caption="Numbers are distances in tokens, as means over seeds. Attention: the mean distance "
    "between a query and its keys, weighted by the attention weights of a head. Gradient: the mean "
    "distance of tokens from the prediction, weighted by the norm of the gradient of the "
    "prediction. Occlusion: the shortest distance beyond which all tokens can be replaced without "
    "changing the predictions.",
    columns=(
        (Column(title="attention, mean"), _attention_entry),
        (Column(title="attention, nearest head"), partial(_attention_entry, end="min")),
        (Column(title="attention, farthest head"), partial(_attention_entry, end="max")),
        (Column(title="gradient"), partial(_model_entry, measure="gradient")),
        (Column(title="occlusion"), partial(_model_entry, measure="occlusion")),
    ),
)
section = Section(
    name="spans",
    heading="How far trained models look",
    data=span_data,
    table=span_table,
    figure=PagesPart(
        "span", "Spans of attention by layer and head",
        "spans in tokens, by layer of the model and by measure", span_figure,
        panel=TASK, number="span",
    ),
)  # fmt: skip
