"""What has no number, and why: each cell once."""

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from reports.rows import MARKS, labels_of, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedLine:
    """Cells of one model that have no number for one reason."""

    model: str
    task: str
    mode: str
    what: str
    """Which number is absent; empty where all are."""
    places: tuple[str, ...]
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
    groups: dict[tuple[str, ...], dict[str, str]] = {}
    met: set[str] = set()
    columns = ("cell", "name", "task", "mode", "length", "seed", "metric", "reference", "status",
               "reason", "labels")  # fmt: skip
    for values in zip(*(bad[c] for c in columns), strict=True):
        cell, name, task, mode, length, seed, metric, reference, status, reason, labels = values
        if cell in whole:
            if cell in met:
                continue
            met.add(cell)
            what = ""
        else:
            what = f"against {reference}" if reference else str(metric).replace("_", " ")
            if factor := labels_of(labels).get("factor"):
                what += f" at {factor} times the training length"
        key = (str(name), shown(task), str(mode), what, str(status), str(reason))
        parts = [] if pd.isna(length) else [f"length {int(length):,}"]
        parts += [] if pd.isna(seed) else [f"seed {int(seed)}"]
        groups.setdefault(key, {})[str(cell)] = ", ".join(parts)
    return [
        FailedLine(
            model=name, task=task, mode=mode, what=what, outcome=MARKS.get(status, status),
            reason=reason, cells=tuple(cells), places=_places(cells.values()),
        )
        for (name, task, mode, what, status, reason), cells in groups.items()
    ]  # fmt: skip


def _places(found: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(found))
