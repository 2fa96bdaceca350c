"""Rows as the store reads them, of a table of a test."""

from typing import Any

import pandas as pd


def rows_in(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table; what it has no value for is None."""
    plain = table.astype(object).where(table.notna(), None)
    return [{str(name): value for name, value in row.items()} for row in plain.to_dict("records")]
