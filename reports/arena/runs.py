"""Rows of runs under a protocol, grouped by what may share a table: protocol and scale."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from lra.reports.arena.rules import BEST_OF_LENGTHS, COSTED
from lra.reports.labels import departures_of, names_in
from lra.reports.stems import stem
from lra.reports.style import current_style

SHARED = "shared"
"""Value of the label `settings` of a model that the protocol's source did not train."""
_PART = "task.partial"
_OF_TASK = "task."
"""Begins the names of options that columns of a table stand for, and not its lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolRuns:
    """All rows under one protocol in one scale; numbers of two of these are never merged."""

    protocol: str
    """Empty for rows without one."""
    scale: str
    """Such as `tiny`; empty for runs of the size that was published."""
    rows: pd.DataFrame
    """Prepared, with the columns `line`, the model's name within these runs; `unlike`, the keys
    that were changed of the protocol; and `shared`, whether the settings are those for all."""

    @property
    def file(self) -> str:
        """Ends the names of files."""
        return stem(*(part for part in (self.protocol, self.scale) if part))

    @property
    def title(self) -> str:
        """Ends the titles of tables and figures."""
        words = f"protocol {self.protocol}" if self.protocol else "no protocol"
        return f"{words}, scale {self.scale}" if self.scale else words


def protocol_runs(frame: pd.DataFrame) -> list[ProtocolRuns]:
    """Return the final rows of models under each protocol and scale, none first: of costs alone.

    Args:
        frame: prepared.
    """
    final = frame[(frame["baseline"] == "") & frame["step"].isna()]
    kept = final[(final["protocol"] != "") | (final["task"] == COSTED)]
    kept = kept.assign(
        unlike=[_changed_keys(row) for row in _records(kept)],
        shared=[labels.get("settings") == SHARED for labels in kept["labels"]],
    )
    kept["family"] = [
        labels.get("called", family)
        for labels, family in zip(kept["labels"], kept["family"], strict=True)
    ]
    kept["line"] = [_line(row) for row in _records(kept)]
    return [
        ProtocolRuns(protocol=str(protocol), scale=str(scale), rows=rows)
        for (protocol, scale), rows in kept.groupby(["protocol", "scale"], sort=True)
    ]


def _records(rows: pd.DataFrame) -> list[dict[Any, Any]]:
    needed = ["family", "options", "labels", "task", "length"]
    needed += [column for column in ("unlike",) if column in rows]
    records: list[dict[Any, Any]] = rows[needed].to_dict("records")
    return records


def _changed_keys(row: Mapping[Any, Any]) -> str:
    """Return the changed keys; the length is none where the rules have several.

    Partial data are not among them: their source says so, in another column.
    """
    keys = names_in(row["labels"].get("changed", ""))
    if row["length"] in BEST_OF_LENGTHS.get(row["task"], ()):
        keys = [key for key in keys if key not in ("task.max_length", "task.padded_length")]
    keys = [key for key in keys if key != _PART]
    return ", ".join(keys)


def _line(row: Mapping[Any, Any]) -> str:
    labels = row["labels"]
    options = {k: v for k, v in row["options"].items() if not k.startswith(_OF_TASK)}
    # each number says which keys: presets may change others for every task
    further = ["changed"] if row["unlike"] and "scale" not in labels else []
    further += [f"from {labels['start']}"] if "start" in labels else []
    return current_style().name(row["family"], options, departures_of(labels), further)
