"""Scores against the width of a head's queries and keys, by the number of heads.

Heads of a fixed share of the model's width get narrower with their number: beyond a point a matrix
of attention weights can no longer be any other one (the low-rank bottleneck of arXiv:2002.07028).
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pandas as pd

from lra.reports.sections.section import TablePart
from lra.reports.style import current_style
from lra.reports.tables.pivot import table_of
from lra.reports.tables.places import by_place, place_title
from lra.reports.tables.scores import SCORES, TASK, Score, entry, final_scores
from lra.reports.tables.table import Column, Entry, Table

WIDTH, HEADS = "backbone.head_width", "backbone.heads"


def key_width_rows(rows: pd.DataFrame, score: Score) -> pd.DataFrame:
    """Return final test scores of models that differ in the width of a head, with both numbers."""
    scores = final_scores(rows, "test", score)
    if scores is None:
        return rows.iloc[:0]
    numbers = [
        [_as_int(options.get(key)) for key in (HEADS, WIDTH)] for options in scores["options"]
    ]
    scores[["heads", "key_width"]] = pd.DataFrame(numbers, index=scores.index, dtype="Int64")
    scores["line"] = [_model_line(row) for row in scores.to_dict("records")]
    scores = scores[scores["key_width"].notna()]
    widths = scores.groupby(list(TASK), dropna=False)["key_width"].transform("nunique")
    return scores[widths > 1]


def _as_int(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _model_line(row: dict[Any, Any]) -> str:
    """Return the model's name without the width of its heads."""
    options = {key: value for key, value in row["options"].items() if key != WIDTH}
    return current_style().name(row["family"], options, row["departures"])


def key_width_table(rows: pd.DataFrame, score: Score) -> Table:
    """Build the table: a line for each number of heads, tasks side by side; failures are marks."""
    places = [
        (task, width, part[part["key_width"] == width])
        for task, part in by_place(rows)
        for width in sorted(set(part["key_width"]))
    ]
    return table_of(
        [
            ("", str(name), name)
            for name in dict.fromkeys(rows.sort_values(["heads", "line"])["line"])
        ],
        [
            (
                Column(group=place_title(task), title=str(width), key=f"{task[0]} {width}"),
                partial(_scored, part, score),
            )
            for task, width, part in places
        ],
        title=f"{score.title} by key width",
        caption=f"{score.unit}, test split, mean over seeds; columns: width of a head's queries "
        "and keys.",
    )


def _scored(rows: pd.DataFrame, score: Score, line: str) -> Entry:
    return entry(rows[rows["line"] == line], score)


def key_widths(rows: pd.DataFrame) -> Iterator[TablePart]:
    """Yield the table of each score that trainings of several widths of heads have."""
    trained = rows[rows["runner"] == "train"]
    for score in SCORES.values():
        scored = key_width_rows(trained, score)
        if not scored.empty:
            name = f"key-width-{score.metric.replace('_', '-')}-table"
            table = key_width_table(scored, score)
            yield TablePart(name, f"{score.title} by key width", table)
