"""Show how much exact attention the index of trained models recalls, by layer and length."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import pandas as pd

from lra.reports.figures.lines import LineDrawing
from lra.reports.sections.section import PagesPart, Part, TablePart
from lra.reports.tables.marks import missing_entry
from lra.reports.tables.pivot import ALL, Pivot, SeedMeans
from lra.reports.tables.places import Place, place_words
from lra.reports.tables.scores import TASK
from lra.reports.tables.table import Column, Entry, Table

WORDS = {"index_recall": "recall", "index_mass": "mass"}
"""The word of the table for each metric."""
_means = SeedMeans(metrics=[*WORDS], labels=("layer", "tokens"))


def recall_data(rows: pd.DataFrame) -> pd.DataFrame:
    """Return means over seeds by task, model, metric, layer and `tokens`.

    `tokens` is the most tokens up to a query, as text: the label `length` of the rows, which also
    have a column of this name.
    """
    measured = rows[rows["runner"] == "index_recall"]
    labels = [
        {**entry, "tokens": entry["length"]} if "length" in entry else entry
        for entry in measured["labels"]
    ]
    return _means(measured.assign(labels=pd.Series(labels, measured.index, dtype=object)))


def recall_table(data: pd.DataFrame) -> Table:
    """Return a table of data from `recall_data`, with a column for each length."""
    lengths = sorted({*data["tokens"]} - {ALL}, key=int)
    columns = [
        (Column(title=f"to {int(n):,}", key=n), partial(_entry, tokens=n)) for n in lengths
    ] or [(Column(title="recall"), partial(_entry, tokens=ALL))]
    return Pivot(
        title="Attention that an index recalls",
        caption="Numbers are percentages, as means over queries and seeds. Mass is the exact "
        "attention to the tokens or blocks that the index chooses; recall is the mass divided by "
        "that of as many tokens or blocks with the most attention. Columns group queries by the "
        "number of tokens up to the query: at most the title, and more than half of it. Queries "
        "that may read every token do not count.",
        stub="layer", lines=_lines, columns=columns,
    )(data)  # fmt: skip


def _lines(data: pd.DataFrame) -> Mapping[str, tuple[str, str]]:
    """Return metric and layer of each line of a model."""
    layers = sorted({*data["layer"]} - {ALL}, key=int)
    lines = {f"layer {n}, {word}": (name, n) for n in layers for name, word in WORDS.items()}
    return lines or {"every layer": ("index_recall", ALL)}


def _entry(data: pd.DataFrame, line: tuple[str, str], tokens: str) -> Entry:
    """Return the number of a line (metric and layer) at a length, or the reason without one."""
    metric, layer = line
    here = (data["metric"] == metric) & (data["layer"] == layer) & (data["tokens"] == tokens)
    measured = data[here & data["value"].notna()]
    if measured.empty:
        return missing_entry(data[data["status"] != "ok"], "no query of this length has a choice")
    value = float(measured["value"].iloc[0])
    return Entry(text=f"{100 * value:.1f}", value=value)


def _panel_words(columns: Sequence[str], place: Place) -> tuple[str, str]:
    """Return the task and the layer of a panel, and facts about its data."""
    *task, layer = place
    title, facts = place_words(columns[:-1], (*task,), untold=["task_version"])
    return f"{title}, layer {layer}", facts


recall_figure = LineDrawing(
    title="Attention that the index recalls", panel=(*TASK, "layer"), x="tokens",
    across="tokens up to the query (at most)", words=_panel_words,
    along=lambda _: ("recall (% of the best choice)", 100.0),
    subtitle=lambda _: "100%: the index chooses what has the most attention; a point is a mean "
    "over queries with at most so many tokens; bands: lowest to highest seed",
)  # fmt: skip


def section(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield a table, and a figure against length."""
    data, heading = recall_data(rows), "Attention that an index recalls"
    yield TablePart("index-recall", heading, recall_table(data))
    drawn = data[(data["metric"] == "index_recall") & (data["tokens"] != ALL)]
    yield PagesPart(
        "index-recall-by-length", f"{heading}, by length",
        "recall of the index of each layer against the number of tokens up to the query",
        recall_figure, panel=recall_figure.panel, along="tokens",
        data=drawn.astype({"layer": int, "tokens": float}).sort_values(["layer", "tokens"]),
    )  # fmt: skip
