"""What is not as in a protocol's source, by its file or by the user's hand: one table of both."""

from collections.abc import Mapping, Sequence
from typing import Any

from lra.reports.arena.rules import TASKS, place
from lra.reports.arena.runs import ProtocolRuns
from lra.reports.labels import names_in
from lra.reports.tables.pivot import listed_table
from lra.reports.tables.table import Column, Entry, Table

UNSTORED = "the explanation is missing from these rows"
CHANGED = "changed by further arguments of the command, or by its preset"
SHARED_SETTINGS = "the source did not train these models, so they have the general settings"

Sentences = Mapping[str, Mapping[str, str]]
"""By cell, what departs from the source of its protocol: sentences by name."""


def deviation_table(runs: Sequence[ProtocolRuns], sentences: Sentences) -> Table | None:
    """Build the table; None where every run under a protocol is as its source has it.

    Args:
        runs: rows of each protocol and scale.
        sentences: of the cells, where they are stored.
    """
    lines = [line for group in runs if group.protocol for line in _lines(group, sentences)]
    if not lines:
        return None
    return listed_table(
        lines, [Column(title=title, words=True) for title in ("what", "tasks", "models")],
        title="Settings that differ from the protocols' sources",
        caption="Each line names a setting that differs from the source, with the models and tasks "
        "whose numbers it concerns.", stub="name",
    )  # fmt: skip


def _lines(runs: ProtocolRuns, sentences: Sentences) -> list[tuple[str, str, tuple[Entry, ...]]]:
    grouped: dict[tuple[int, str, str], list[Mapping[Any, Any]]] = {}
    cells = runs.rows.drop_duplicates(["cell", "line"])
    for row in cells[["cell", "family", "task", "labels", "unlike", "shared"]].to_dict("records"):
        by_name = sentences.get(str(row["cell"]), {})
        for name in names_in(row["labels"].get("deviations", "")):
            grouped.setdefault((0, name, by_name.get(name, UNSTORED)), []).append(row)
        if row["unlike"]:
            grouped.setdefault((1, row["unlike"], CHANGED), []).append(row)
        if row["shared"]:
            grouped.setdefault((2, "settings=shared", SHARED_SETTINGS), []).append(row)
    return [
        (runs.title, name, _deviation_entries(text, grouped[key]))
        for key in sorted(grouped)
        for _, name, text in [key]
    ]


def _deviation_entries(text: str, rows: Sequence[Mapping[Any, Any]]) -> tuple[Entry, ...]:
    tasks = sorted({str(row["task"]) for row in rows}, key=lambda t: ([*TASKS, t].index(t), t))
    models = sorted({str(row["family"]) for row in rows}, key=place)
    return (Entry(text=text), Entry(text=", ".join(tasks)), Entry(text=", ".join(models)))
