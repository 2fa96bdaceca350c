"""Entries of a table for places without a number."""

from typing import Any

import pandas as pd

from lra.reports.rows import MARKS, MISSING
from lra.reports.tables.table import Entry


def absent(*notes: str) -> Entry:
    """Return a dash with notes, for a place of a table without a row."""
    return Entry(text="–", status=MISSING, notes=notes)


def missing_entry(rows: "pd.DataFrame", *notes: str) -> Entry:
    """Return the entry of the first of these failed rows; without rows, a dash with `notes`."""
    return absent(*notes) if rows.empty else failure_entry(rows.iloc[0])


def failure_entry(line: "pd.Series[Any]") -> Entry:
    """Return the entry of a failed row, for example "OOM"; the reason becomes its note."""
    status = str(line["status"])
    return Entry(text=MARKS.get(status, status), status=status, notes=(str(line["reason"]),))
