"""Spans that heads have learned: a point for each, and the operations that they spare."""

from collections.abc import Iterator
from functools import partial

import pandas as pd

from lra.reports.rows import model_order
from lra.reports.sections.section import PagesPart, Part, TablePart
from lra.reports.sections.spans import ALL, span_data, span_figure
from lra.reports.tables.costs import significant
from lra.reports.tables.marks import absent
from lra.reports.tables.places import by_place, place_title
from lra.reports.tables.scores import TASK
from lra.reports.tables.table import Column, Entry, Table, TableRow

COLUMNS = (
    "mean span", "longest head", "flop of a window", "× full spans", "flop per token",
    "× full spans",
)  # fmt: skip
COUNTED, PER_TOKEN = "span_flops", "span_flops_per_token"


def learned_span_table(rows: pd.DataFrame) -> Table | None:
    """Build the table of learned spans and of operations; None where no row has any.

    Args:
        rows: as `lra.reports.rows.prepare` returns them.
    """
    data = span_data(rows, "learned_span")
    if data.empty:
        return None
    places = by_place(data)
    columns = tuple(
        Column(group=place_title(place), title=title, key=f"{place[0]} {n} {title}")
        for place, _ in places
        for n, title in enumerate(COLUMNS)
    )
    table_rows = []
    for name in model_order([str(n) for n in data["model"]]):
        entries: list[Entry] = []
        for place, spans in places:
            measured = rows[(rows[list(TASK)] == list(place)).all(axis=1) & (rows["name"] == name)]
            entries += _spans(spans[spans["model"] == name])
            for metric in (COUNTED, PER_TOKEN):
                entries += _operations(measured[measured["metric"] == metric])
        table_rows.append(TableRow(title=name, entries=tuple(entries)))
    return Table(
        title="Learned spans",
        caption="Tokens, without the ramp, mean over seeds. A window: counted operations of one "
        "pass, with keys as far as the longest head of each layer. Per token: every head by its "
        "own span, without positions and the model's head; a multiply-add is 2.",
        stub="model",
        columns=columns,
        rows=tuple(table_rows),
    )


def _spans(spans: pd.DataFrame) -> list[Entry]:
    heads = spans[spans["head"] != ALL]["span"].dropna().astype(float)
    if heads.empty:
        return [absent("not measured")] * 2
    return [Entry(text=f"{v:.1f}", value=float(v)) for v in (heads.mean(), heads.max())]


def _operations(rows: pd.DataFrame) -> list[Entry]:
    """Return the operations at learned spans, and their share of those at full spans."""
    good = rows[rows["status"] == "ok"]
    words = pd.Series([labels.get("spans", "") for labels in good["labels"]], index=good.index)
    means = good["value"].astype(float).groupby(words).mean()
    if not {"learned", "full"} <= set(means.index):
        return [absent("not measured")] * 2
    count, share = float(means["learned"]), float(means["learned"] / means["full"])
    return [Entry(text=significant(count), value=count), Entry(text=f"{share:.2f}", value=share)]


def learned_spans(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield table and figure of the spans that trainings have learned."""
    table = learned_span_table(rows)
    if table is None:
        return
    yield TablePart("learned-spans", "Learned spans", table)
    draw = partial(
        span_figure, title="Learned spans", subtitle="a point for each head, without its ramp"
    )
    yield PagesPart(
        "learned-spans-by-layer", "Learned spans by layer",
        "spans in tokens that the heads of each layer have learned", draw, panel=TASK,
        number="span", data=span_data(rows, "learned_span"),
    )  # fmt: skip
