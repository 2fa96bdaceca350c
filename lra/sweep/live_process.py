"""The process that writes the runs of a dashboard, the store at its side. No torch, no pandas."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from lra.reports.dashboard import live_writer
from lra.runners.records import Row
from lra.runners.storage.formats import read_newest_rows
from lra.runners.store import Store


def main() -> None:
    """Write what standard input says until it ends."""
    live_writer.main(StoredCells)


class StoredCells:
    """What the store says of cells that have ended."""

    def __init__(self, root: Path) -> None:
        self.store = Store(root)

    def rows(self, cells: Collection[str]) -> list[Row]:
        """Return the rows of cells that have some."""
        newest = (read_newest_rows(self.store.cell_folder(cell)) for cell in cells)
        return [row for stored in newest if stored is not None for row in stored[1]]

    def about(self, cell: str) -> Mapping[str, Any]:
        """Return identity and configuration of a cell."""
        return self.store.cell(cell)
