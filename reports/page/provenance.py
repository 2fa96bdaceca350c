"""Where the rows of a report come from, and why numbers are absent."""

from collections.abc import Sequence

import pandas as pd

from reports.rows import MARKS, TIMED, labels_of, shown


def provenance(frame: pd.DataFrame) -> list[str]:
    """Return what the rows say about where they come from."""

    def values(column: str) -> str:
        found = sorted({shown(v) for v in frame[column].unique()} - {"–"})
        return _some(found, 6, ", ") if found else "not recorded"

    tasks = frame[["task", "task_version", "source"]].drop_duplicates()
    named = sorted(
        f"{shown(t)} version {shown(v)} (data: {shown(s)})" for t, v, s in tasks.to_numpy()
    )
    written = pd.to_datetime(frame["created"], utc=True).dropna()
    newest = written.max().strftime("%Y-%m-%d %H:%M UTC") if len(written) else "not recorded"
    cells = frame["cell"].nunique()
    machine = f"{values('device')}; {values('precision')}; threads {values('threads')}"
    return [
        f"Tasks: {'; '.join(named)}",
        f"Hardware profile: {values('hardware')}; machine: {machine}",
        f"Seeds: {values('seed')}",
        f"Rows: {len(frame):,} from {cells:,} cells, schema {values('schema')}; "
        f"sources (fingerprints): {values('fingerprint')}",
        f"Newest row: {newest}",
    ]


def failures(frame: pd.DataFrame) -> list[str]:
    """Return one line per reason for which a number is absent."""
    bad = frame[frame["status"] != "ok"]
    found: dict[tuple[str, ...], list[str]] = {}
    for row in bad.itertuples():
        against = f" against {row.reference!s}" if row.reference else ""
        where = (
            f"length {shown(row.length)}"
            if row.metric in {*TIMED, "output_error"} or against
            else f"seed {shown(row.seed)}"
        )
        if factor := labels_of(row.labels).get("factor"):
            where = f"{factor} times the training length, {where}"
        key = (str(row.status), str(row.reason), f"{row.name}{against}, {row.task}, {row.mode}")
        if where not in found.setdefault(key, []):
            found[key].append(where)
    return [
        f"{who}: {MARKS[status]}: {reason} ({_some(positions)})"
        for (status, reason, who), positions in sorted(found.items())
    ]


def _some(items: Sequence[str], at_most: int = 4, between: str = "; ") -> str:
    rest = len(items) - at_most
    return between.join(items[:at_most]) + (f"{between}and {rest} more" if rest > 0 else "")
