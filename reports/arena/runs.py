"""Group the rows of runs under protocols by protocol and scale; a table has one such group."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from lra.reports.arena.rules import BEST_OF_LENGTHS, COSTED
from lra.reports.labels import departures_of, names_in
from lra.reports.stems import stem
from lra.reports.style import current_style

SHARED = "shared"
"""The label `settings` has this value if the protocol's source did not train the model."""
_PART = "task.partial"
_OF_TASK = "task."
"""The beginning of the names of options of a task, which columns of a table show, not lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolRuns:
    """All rows under one protocol and scale. Numbers of two such groups are never merged."""

    protocol: str
    """The name of the protocol; "" for rows without a protocol."""
    scale: str
    """For example `tiny`; "" for runs of the published size."""
    rows: pd.DataFrame
    """Prepared rows with three further columns: `line`, the model's name within this group;
    `unlike`, the changed options; and `shared`, whether the protocol's source did not train it."""

    @property
    def file(self) -> str:
        """The end of the names of files."""
        return stem(*(part for part in (self.protocol, self.scale) if part))

    @property
    def title(self) -> str:
        """The end of the titles of tables and figures."""
        words = f"protocol {self.protocol}" if self.protocol else "no protocol"
        return f"{words}, scale {self.scale}" if self.scale else words


def protocol_runs(frame: pd.DataFrame) -> list[ProtocolRuns]:
    """Return the final rows of models, grouped by protocol and scale.

    The first groups are runs without a protocol on the task of the table of costs, if any.
    """
    final = frame[(frame["baseline"] == "") & frame["step"].isna()]
    used = final[(final["protocol"] != "") | (final["task"] == COSTED)]
    used = used.assign(
        unlike=[_changed_keys(row) for row in _records(used)],
        shared=[labels.get("settings") == SHARED for labels in used["labels"]],
    )
    used["family"] = [
        labels.get("called", family)
        for labels, family in zip(used["labels"], used["family"], strict=True)
    ]
    used["line"] = [_line_name(row) for row in _records(used)]
    return [
        ProtocolRuns(protocol=str(protocol), scale=str(scale), rows=rows)
        for (protocol, scale), rows in used.groupby(["protocol", "scale"], sort=True)
    ]


def _records(rows: pd.DataFrame) -> list[dict[Any, Any]]:
    """Return rows as dictionaries with the columns that make names."""
    needed = ["family", "options", "labels", "task", "length", "kernels"]
    needed += [column for column in ("unlike",) if column in rows]
    records: list[dict[Any, Any]] = rows[needed].to_dict("records")
    return records


def _changed_keys(row: Mapping[Any, Any]) -> str:
    """Return the options of the protocol that were changed, separated by commas.

    The length is omitted where the rules allow several lengths, and partial data are omitted
    because a column of the table names the source of the data.
    """
    keys = names_in(row["labels"].get("changed", ""))
    if row["length"] in BEST_OF_LENGTHS.get(row["task"], ()):
        keys = [key for key in keys if key not in ("task.max_length", "task.padded_length")]
    return ", ".join(key for key in keys if key != _PART)


def _line_name(row: Mapping[Any, Any]) -> str:
    """Return the name of a row's model in the tables of the Long Range Arena."""
    labels = row["labels"]
    options = {k: v for k, v in row["options"].items() if not k.startswith(_OF_TASK)}
    # The notes of single numbers list the changed options, which may differ between tasks.
    further = ["changed"] if row["unlike"] and "scale" not in labels else []
    further += [row["kernels"]] if row["kernels"] else []
    further += [f"from {labels['start']}"] if "start" in labels else []
    return current_style().name(row["family"], options, departures_of(labels), further)
