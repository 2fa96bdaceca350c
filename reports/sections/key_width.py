"""Make tables of scores by the width of a head's queries and keys, and by the number of heads.

With a fixed width of the model, more heads are narrower. Heads that are too narrow cannot represent
every matrix of attention weights (the low-rank bottleneck of arXiv:2002.07028).
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
    """Return final test scores on tasks with several widths, with `heads` and `key_width`."""
    scores = final_scores(rows, "test", score)
    if scores is None:
        return rows.iloc[:0]
    numbers = [
        [_as_int(options.get(key)) for key in (HEADS, WIDTH)] for options in scores["options"]
    ]
    scores[["heads", "key_width"]] = pd.DataFrame(numbers, index=scores.index, dtype="Int64")
    scores["line"] = [_name_without_width(row) for row in scores.to_dict("records")]
    scores = scores[scores["key_width"].notna()]
    widths = scores.groupby(list(TASK), dropna=False)["key_width"].transform("nunique")
    return scores[widths > 1]


def _as_int(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _name_without_width(row: dict[Any, Any]) -> str:
    """Return the model's name without the width of its heads."""
    options = {key: value for key, value in row["options"].items() if key != WIDTH}
    return current_style().name(row["family"], options, row["departures"])


def key_width_table(rows: pd.DataFrame, score: Score) -> Table:
    """Return a table with a line for each number of heads and columns for each task and width."""
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
                partial(_entry_of_line, part, score),
            )
            for task, width, part in places
        ],
        title=f"{score.title} by key width",
        caption=f"Numbers are {score.unit}, as means over seeds on the test split. Columns are "
        "widths of a head's queries and keys.",
    )


def _entry_of_line(rows: pd.DataFrame, score: Score, line: str) -> Entry:
    return entry(rows[rows["line"] == line], score)


def key_widths(rows: pd.DataFrame) -> Iterator[TablePart]:
    """Yield a table for each score of trainings with several widths of heads."""
    trained = rows[rows["runner"] == "train"]
    for score in SCORES.values():
        scored = key_width_rows(trained, score)
        if not scored.empty:
            name = f"key-width-{score.metric.replace('_', '-')}-table"
            table = key_width_table(scored, score)
            yield TablePart(name, f"{score.title} by key width", table)
