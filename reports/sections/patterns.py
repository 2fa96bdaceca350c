"""How many keys a query sees, by the patterns of a model's layers and heads."""

import pandas as pd

from lra.reports.rows import model_order, short, with_labels
from lra.reports.sections.section import SimpleSection
from lra.reports.tables.costs import significant
from lra.reports.tables.marks import failed
from lra.reports.tables.scores import TASK
from lra.reports.tables.table import Column, Entry, Table, TableRow

MODEL = (*TASK, "model")


def pattern_data(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a line for each query of each pattern, of the first seed; or the reason why not.

    `kind` says which layer and head have the pattern first, where several differ.
    """
    patterns = with_labels(rows[rows["runner"] == "pattern"], ("layer", "head"))
    patterns = patterns[
        patterns["seed"] == patterns.groupby([*TASK, "name"], dropna=False)["seed"].transform("min")
    ]
    patterns["model"], patterns["keys"] = patterns["name"], patterns["value"]
    patterns["reason"] = [short(str(reason)) for reason in patterns["reason"]]
    parts = []
    for label in ("layer", "head"):
        differs = patterns.groupby([*MODEL], dropna=False)[label].transform("nunique") > 1
        parts.append((label + " " + patterns[label]).where(differs, ""))
    patterns["kind"] = [", ".join(filter(None, pair)) for pair in zip(*parts, strict=True)]
    place = {name: number for number, name in enumerate(model_order([*patterns["model"]]))}
    order = patterns["model"].map(place).sort_values(kind="stable").index
    return patterns.loc[order, [*MODEL, "kind", "keys", "status", "reason"]]


def pattern_table(data: pd.DataFrame) -> Table:
    """Build the table of keys that a query sees, by pattern."""
    rows = []
    for (name, kind), part in data.groupby(["model", "kind"], sort=False):
        good = part[part["status"] == "ok"]
        title = str(kind) or "every layer and head"
        if good.empty:
            mark = failed(part.iloc[0])
            rows.append(TableRow(title=title, entries=(mark,) * 3, section=str(name)))
            continue
        values = [float(good["keys"].mean()), float(good["keys"].min()), float(good["keys"].max())]
        entries = tuple(Entry(text=significant(value), value=value) for value in values)
        rows.append(TableRow(title=title, entries=entries, section=str(name)))
    return Table(
        title="Keys that a query sees",
        caption="Over the queries of one random example; a layer and head stands for all with the "
        "same pattern.",
        stub="pattern",
        columns=tuple(Column(title=title, key=title) for title in ("mean", "fewest", "most")),
        rows=tuple(rows),
    )


section = SimpleSection(
    name="patterns", heading="Keys that a query sees", data=pattern_data, table=pattern_table
)
