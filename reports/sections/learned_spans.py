"""Show the spans that attention heads have learned, and the operations that they save."""

from collections.abc import Iterator
from functools import partial

import pandas as pd

from lra.reports.sections.section import PagesPart, Part, TablePart
from lra.reports.sections.spans import LABELS, span_figure
from lra.reports.tables.costs import significant
from lra.reports.tables.marks import absent
from lra.reports.tables.pivot import ALL, Pivot, SeedMeans
from lra.reports.tables.scores import TASK
from lra.reports.tables.table import Column, Entry

SPAN, COUNTED, PER_TOKEN = "learned_span", "span_flops", "span_flops_per_token"
numbers = SeedMeans(metrics=(SPAN, COUNTED, PER_TOKEN), labels=(*LABELS, "spans"), value="span")


def _span_entry(data: pd.DataFrame, over: str) -> Entry:
    """Return the span over all heads of a model; `over` is `mean` or `max`."""
    heads = data[(data["metric"] == SPAN) & (data["head"] != ALL)]["span"].dropna()
    if heads.empty:
        return absent("not measured")
    value = float(heads.astype(float).agg(over))
    return Entry(text=f"{value:.1f}", value=value)


def _operations_entry(data: pd.DataFrame, metric: str, *, share: bool = False) -> Entry:
    """Return the operations with learned spans; if `share`, divided by those with full spans."""
    means = data[data["metric"] == metric].set_index("spans")["span"].dropna()
    if not {"learned", "full"} <= {*means.index}:
        return absent("not measured")
    learned, ratio = float(means["learned"]), float(means["learned"] / means["full"])
    if share:
        return Entry(text=f"{ratio:.2f}", value=ratio)
    return Entry(text=significant(learned), value=learned)


def _pair_of_columns(
    metric: str, title: str, number: int
) -> tuple[tuple[Column, partial[Entry]], ...]:
    """Return the columns of operations, and of their ratio to full spans, with their functions.

    `number` is the place of the first in the table; it begins the keys, so that they differ.
    """
    ratio = Column(title="× full spans", key=f"{number + 1} × full spans")
    return (
        (Column(title=title, key=f"{number} {title}"), partial(_operations_entry, metric=metric)),
        (ratio, partial(_operations_entry, metric=metric, share=True)),
    )


learned_span_table = Pivot(
    title="Learned spans",
    caption="Spans are in tokens, as means over seeds, without the ramp at their end. Flop of a "
    "window: the operations of one pass, in which a layer computes attention as far back as its "
    "longest head. Flop per token: the operations if each head computes only the span that it has "
    "learned, without position encodings and the output layer. A multiply-add counts as 2 "
    "operations.",
    columns=(
        (Column(title="mean span", key="0 mean span"), partial(_span_entry, over="mean")),
        (Column(title="longest head", key="1 longest head"), partial(_span_entry, over="max")),
        *_pair_of_columns(COUNTED, "flop of a window", 2),
        *_pair_of_columns(PER_TOKEN, "flop per token", 4),
    ),
)


def learned_spans(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield a table and a figure of the spans that heads learned in training."""
    data = numbers(rows)
    spans = data[data["metric"] == SPAN].drop(columns=["metric", "spans"])
    if spans.empty:
        return
    draw = partial(
        span_figure, title="Learned spans",
        subtitle="each point is the span of a head, without the ramp at its end",
    )  # fmt: skip
    yield TablePart("learned-spans", "Learned spans", learned_span_table(data))
    yield PagesPart(
        "learned-spans-by-layer", "Learned spans by layer",
        "spans in tokens that the heads of each layer have learned", draw,
        panel=TASK, number="span", data=spans,
    )  # fmt: skip
