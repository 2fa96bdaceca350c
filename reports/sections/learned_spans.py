"""Spans that heads have learned: a point for each, and the operations that they spare."""

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


def _span(data: pd.DataFrame, over: str) -> Entry:
    """Return the mean or the longest span of heads."""
    heads = data[(data["metric"] == SPAN) & (data["head"] != ALL)]["span"].dropna()
    if heads.empty:
        return absent("not measured")
    value = float(heads.astype(float).agg(over))
    return Entry(text=f"{value:.1f}", value=value)


def _operations(data: pd.DataFrame, metric: str, *, share: bool = False) -> Entry:
    """Return the operations at learned spans, or their share of those at full spans."""
    means = data[data["metric"] == metric].set_index("spans")["span"].dropna()
    if not {"learned", "full"} <= {*means.index}:
        return absent("not measured")
    learned, ratio = float(means["learned"]), float(means["learned"] / means["full"])
    if share:
        return Entry(text=f"{ratio:.2f}", value=ratio)
    return Entry(text=significant(learned), value=learned)


def _columns(metric: str, title: str, number: int) -> tuple[tuple[Column, partial[Entry]], ...]:
    full = Column(title="× full spans", key=f"{number + 1} × full spans")
    return (
        (Column(title=title, key=f"{number} {title}"), partial(_operations, metric=metric)),
        (full, partial(_operations, metric=metric, share=True)),
    )


learned_span_table = Pivot(
    title="Learned spans",
    caption="Spans in tokens, without the ramp, as means over seeds. Flop of a window: operations "
    "counted in one pass, in which each layer computes keys as far back as its longest head. Flop "
    "per token: each head counts with its span, without positions and the model's head. A "
    "multiply-add counts as 2 operations.",
    columns=(
        (Column(title="mean span", key="0 mean span"), partial(_span, over="mean")),
        (Column(title="longest head", key="1 longest head"), partial(_span, over="max")),
        *_columns(COUNTED, "flop of a window", 2),
        *_columns(PER_TOKEN, "flop per token", 4),
    ),
)


def learned_spans(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield table and figure of the spans that trainings have learned."""
    data = numbers(rows)
    spans = data[data["metric"] == SPAN].drop(columns=["metric", "spans"])
    if spans.empty:
        return
    draw = partial(
        span_figure, title="Learned spans", subtitle="a point for each head, without its ramp"
    )
    yield TablePart("learned-spans", "Learned spans", learned_span_table(data))
    yield PagesPart(
        "learned-spans-by-layer", "Learned spans by layer",
        "spans in tokens that the heads of each layer have learned", draw,
        panel=TASK, number="span", data=spans,
    )  # fmt: skip
