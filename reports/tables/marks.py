"""What stands in a table where there is no number."""

from typing import Any

import pandas as pd

from lra.reports.rows import MARKS, MISSING
from lra.reports.tables.table import Entry


def absent(*notes: str) -> Entry:
    """Return the entry of a place that no row is about."""
    return Entry(text="–", status=MISSING, notes=notes)


def missing_entry(rows: "pd.DataFrame", *notes: str) -> Entry:
    """Return the mark of the first of rows without a number, or of none at all, with notes."""
    return absent(*notes) if rows.empty else failure_entry(rows.iloc[0])


def failure_entry(line: "pd.Series[Any]") -> Entry:
    """Return the mark of a failure with its reason, of a line with `status` and `reason`."""
    status = str(line["status"])
    return Entry(text=MARKS.get(status, status), status=status, notes=(str(line["reason"]),))
