"""Reads the rows of many cells, checking them together: most of the time goes into checks.

Cells of which anything is not as it should be are read again, one by one, so that messages and
their order are those of `formats.read_newest_rows`.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from runners.storage import schema_1
from runners.storage.formats import (
    BadStore,
    read_newest_rows,
    rows_files,
    skipping_damaged,
    sound_rows,
    written,
)
from runners.storage.row_check import first_fault

_TOGETHER = 64
"""Cells that are checked at once, and read again where one of them is damaged. More would be
slower: their rows would no longer stand in the processor's cache."""


def newest_rows(
    folders: Sequence[Path], left_out: list[BadStore] | None
) -> Iterator[list[dict[str, Any]]]:
    """Yield the newest rows of some cells at a time, in the order of the folders.

    Args:
        folders: of cells.
        left_out: gains what is wrong with each cell that cannot be read; None: the first is raised.
    """
    for start in range(0, len(folders), _TOGETHER):
        part = folders[start : start + _TOGETHER]
        found = _sound(part)
        if found is not None:
            yield found
            continue
        for folder in part:
            with skipping_damaged(left_out):
                newest = read_newest_rows(folder)
                if newest is not None:
                    yield newest[1]


def _sound(folders: Sequence[Path]) -> list[dict[str, Any]] | None:
    """Return the newest rows of all cells, or None where a file of any cell is damaged."""
    cells = []
    for folder in folders:
        try:
            files = rows_files(folder)
        except BadStore:
            return None
        found = sound_rows(files, folder.name)
        if found is None:
            return None
        if found:
            cells.append(found)
    if first_fault([row for cell in cells for _, rows in cell for row in rows]) is not None:
        return None
    newest = [row for cell in cells for row in max(cell, key=written)[1]]
    for row in newest:
        if row["schema"] == 1:
            row["model"] = schema_1.model(row)
    return newest
