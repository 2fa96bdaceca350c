"""Reads the rows of many cells, checking them together: most of the time goes into checks.

Cells of which anything is not as it should be are read again, one by one, so that messages and
their order are those of `formats.read_newest_rows`.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from runners.storage.blocks import Block, are_sound, block_in, blocks_of, renamed
from runners.storage.formats import BadStore, read_newest_rows, rows_files, skipping_damaged

_TOGETHER = 64
"""Cells that are checked at once, and read again where one of them is damaged. More would be
slower: their rows would no longer stand in the processor's cache."""


def newest_rows(
    folders: Sequence[Path], left_out: list[BadStore] | None
) -> Iterator[Sequence[Block]]:
    """Yield the newest rows of some cells at a time, in the order of the folders.

    Args:
        folders: of cells.
        left_out: gains what is wrong with each cell that cannot be read; None: the first is raised.
    """
    for start in range(0, len(folders), _TOGETHER):
        part = [(folder, _unchecked(folder)) for folder in folders[start : start + _TOGETHER]]
        alike = [block for _, found in part for block in found or ()]
        sound = are_sound(alike)
        blocks: list[Block] = []
        for folder, found in part:
            if sound and found is not None:
                newest = max(found, key=lambda block: str(block.shared["created"]), default=None)
                blocks += [] if newest is None else [renamed(newest)]
                continue
            with skipping_damaged(left_out):
                read = read_newest_rows(folder)
                blocks += [] if read is None else blocks_of(read[1])
        yield blocks


def _unchecked(folder: Path) -> list[Block] | None:
    """Return a block for each rows file of a cell; None where one is of another form."""
    try:
        files = rows_files(folder)
    except BadStore:
        return None
    found = []
    for path in files:
        block = block_in(path, folder.name)
        if block is None:
            return None
        found.append(block)
    return found
