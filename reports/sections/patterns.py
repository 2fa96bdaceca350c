"""Show how many keys a query attends to, by the patterns of a model's layers and heads."""

from functools import partial

import pandas as pd

from lra.reports.rows import model_order, short, with_labels
from lra.reports.sections.section import Section
from lra.reports.tables.costs import significant
from lra.reports.tables.marks import failure_entry
from lra.reports.tables.pivot import Pivot
from lra.reports.tables.scores import TASK
from lra.reports.tables.table import Column, Entry

MODEL = (*TASK, "model")


def pattern_data(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a line for each query of each pattern of the first seed, or the reason of a failure.

    The column `kind` names the first layer and head with the pattern, if they differ.
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


def _keys_entry(data: pd.DataFrame, kind: str, over: str) -> Entry:
    """Return the mean, minimum or maximum (`over`) of keys over the queries of one pattern."""
    part = data[data["kind"] == kind]
    counted = part[part["status"] == "ok"]
    if counted.empty:
        return failure_entry(part.iloc[0])
    value = float(counted["keys"].agg(over))
    return Entry(text=significant(value), value=value)


pattern_table = Pivot(
    title="Keys that a query attends to",
    caption="The table counts the keys that a query attends to, over all queries of one random "
    "example. A line is one layer and head; others with the same pattern have no line.",
    stub="pattern",
    places=(),
    lines=lambda data: {kind or "every layer and head": kind for kind in data["kind"].unique()},
    columns=[
        (Column(title=title, key=title), partial(_keys_entry, over=over))
        for title, over in (("mean", "mean"), ("fewest", "min"), ("most", "max"))
    ],
)
section = Section(
    name="patterns", heading="Keys that a query attends to", data=pattern_data, table=pattern_table
)
