"""What has no number, and why: each cell once."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from reports.rows import MARKS, labels_of, shown, values

_NAMED = 8
"""Lengths, or seeds, that a line names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedLine:
    """Cells of one model that have no number for one reason."""

    model: str
    task: str
    mode: str
    what: str
    """Which number is absent; empty where all are."""
    places: str
    """Lengths and seeds."""
    outcome: str
    reason: str
    cells: tuple[str, ...]


def failed_lines(frame: pd.DataFrame) -> list[FailedLine]:
    """Return one line for each model and reason; a cell that has no number at all is in one.

    Args:
        frame: as `reports.rows.prepare` returns it.
    """
    bad = frame[frame["status"] != "ok"]
    whole = set(bad["cell"]) - set(frame["cell"][frame["status"] == "ok"])
    groups: dict[tuple[str, ...], dict[str, tuple[Any, Any]]] = {}
    met: set[str] = set()
    columns = ("cell", "name", "task", "mode", "length", "seed", "metric", "reference", "status",
               "reason", "labels")  # fmt: skip
    for line in zip(*(values(bad, c) for c in columns), strict=True):
        cell, name, task, mode, length, seed, metric, reference, status, reason, labels = line
        if cell in whole:
            if cell in met:
                continue
            met.add(cell)
            what = ""
        else:
            what = f"against {reference}" if reference else str(metric).replace("_", " ")
            if factor := labels_of(labels).get("factor"):
                what += f" at {factor} times the training length"
        key = (what, str(name), shown(task), str(mode), str(status), str(reason))
        groups.setdefault(key, {})[str(cell)] = (length, seed)
    return [
        FailedLine(
            model=name, task=task, mode=mode, what=what, outcome=MARKS.get(status, status),
            reason=reason, cells=tuple(cells), places=_places(cells.values()),
        )
        for (what, name, task, mode, status, reason), cells in sorted(
            groups.items(), key=lambda group: group[0][0] != ""
        )
    ]  # fmt: skip


def _places(found: Iterable[tuple[Any, Any]]) -> str:
    """Return lengths and seeds in a few words."""
    pairs = list(found)
    parts = []
    for name, numbered in (("length", [n for n, _ in pairs]), ("seed", [s for _, s in pairs])):
        numbers = sorted({int(value) for value in numbered if not pd.isna(value)})
        if numbers:
            words = [f"{number:,}" for number in numbers[:_NAMED]]
            rest = len(numbers) - len(words)
            text = ", ".join(words) + (f" and {rest} more" if rest > 0 else "")
            parts.append(f"{name}{'s' if len(numbers) > 1 else ''} {text}")
    return "; ".join(parts)
