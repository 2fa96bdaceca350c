"""The process that writes the runs of a dashboard, with the store at its side. Torch-free."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from reports.dashboard import live_writer
from runners.store import Store, read_rows, read_rows_file, table_of


def main() -> None:
    """Write what standard input says until it ends."""
    live_writer.main(StoredCells)


class StoredCells:
    """What the store says of cells that have ended."""

    def __init__(self, root: Path, sweep: str) -> None:
        self.root, self.sweep = root, sweep

    def rows(self, file: Path, others: Collection[str]) -> pd.DataFrame:
        """Return the rows in a file just written, and those of other cells of the sweep."""
        rows = table_of(read_rows_file(file))
        if not others:
            return rows
        stored = read_rows(self.root, self.sweep, left_out=[])
        return pd.concat([stored[stored["cell"].isin(others)], rows], ignore_index=True)

    def about(self, cell: str) -> Mapping[str, Any]:
        """Return identity and configuration of a cell."""
        return Store(self.root).cell(cell)
