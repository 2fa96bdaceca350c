"""Make the table of settings in which runs differ from the source of their protocol."""

from collections.abc import Mapping, Sequence
from typing import Any

from lra.reports.arena.rules import TASKS, place
from lra.reports.arena.runs import ProtocolRuns
from lra.reports.labels import names_in
from lra.reports.tables.pivot import listed_table
from lra.reports.tables.table import Column, Entry, Table

UNSTORED = "the rows do not say why this setting differs"
CHANGED = "an argument of the command, or its preset, changed this setting"
SHARED_SETTINGS = (
    "the protocol's source did not train these models, so they use its settings for all models"
)

Sentences = Mapping[str, Mapping[str, str]]
"""For each run, by the name of a setting, a sentence about how it differs from the source."""


def deviation_table(runs: Sequence[ProtocolRuns], sentences: Sentences) -> Table | None:
    """Return the table of settings that differ; None if no run differs from its source.

    `runs` are those of each protocol and scale; `sentences` explain differences, if stored.
    """
    lines = [
        line for group in runs if group.protocol for line in _deviation_lines(group, sentences)
    ]
    if not lines:
        return None
    return listed_table(
        lines, [Column(title=title, words=True) for title in ("what", "tasks", "models")],
        title="Settings that differ from the sources of the protocols",
        caption="Each line names a setting of these runs that differs from the source of the "
        "protocol, and the tasks and models with this difference.", stub="name",
    )  # fmt: skip


def _deviation_lines(
    runs: ProtocolRuns, sentences: Sentences
) -> list[tuple[str, str, tuple[Entry, ...]]]:
    """Return a line for each differing setting: those of the protocol's file, then the user's.

    Settings of models that the source did not train are last; a number in the key gives this order.
    """
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
        (runs.title, name, _deviation_entries(text, rows))
        for (_, name, text), rows in sorted(grouped.items(), key=lambda item: item[0])
    ]


def _deviation_entries(text: str, rows: Sequence[Mapping[Any, Any]]) -> tuple[Entry, ...]:
    """Return what differs, and the tasks and models of `rows`, in the order of the paper."""
    # A task that the paper lacks has no place in `TASKS`, and is last.
    tasks = sorted({str(row["task"]) for row in rows}, key=lambda t: ([*TASKS, t].index(t), t))
    models = sorted({str(row["family"]) for row in rows}, key=place)
    return (Entry(text=text), Entry(text=", ".join(tasks)), Entry(text=", ".join(models)))
