"""Rows files as `runners.store` writes them, read in a third of the time that any JSON takes.

Rows of a cell begin alike: two thirds of each line, up to its metric, are those of the line before.
That part is parsed, checked and put into the table once for all rows of a file. A file of any other
form is left to `formats.read_rows_file`, which also says what is wrong with one that is damaged.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from runners.records import COLUMNS
from runners.storage import schema_1
from runners.storage.formats import DECODER, fingerprint_of, read_bytes
from runners.storage.row_check import is_sound

SHARED = COLUMNS[: COLUMNS.index("metric")]
"""The columns in which rows of a cell are alike; but `model`, where a row is of a baseline."""
OWN = COLUMNS[len(SHARED) :]
_OWN_BEGINS = f',"{OWN[0]}":'
_shared_values = itemgetter(*SHARED)


class Block(NamedTuple):
    """Rows one after the other that are alike in the columns `SHARED`."""

    shared: Mapping[str, Any]
    """Their values."""
    rows: Sequence[Mapping[str, Any]]
    """At least the columns `OWN` of each."""


def block_in(path: Path, key: str) -> Block | None:
    """Return the rows of a cell's file, which are yet to be checked: see `are_sound`.

    Args:
        path: the file.
        key: of the cell that it must belong to.

    Returns:
        None where rows begin differently, or the file is not as it should be.
    """
    try:
        text = read_bytes(path).decode()
        begin = text[: text.find(_OWN_BEGINS)]
        # Whole JSON by itself: so the text is cut between two columns of the first row, and every
        # line that begins with the same is cut there too.
        shared = DECODER.decode(f"{begin}}}")
        ends = text[len(begin) + 1 : -1].split(f"\n{begin},")
        rows = DECODER.decode(f"[{{{',{'.join(ends)}]")
    except (ValueError, RecursionError):  # of which BadStore is one
        return None
    lines, followed = text.count("\n"), text.count(" \n")
    whole = text.endswith("\n") and not text.endswith(" \n")
    if (
        not whole
        or not lines == len(ends) == len(rows)
        or followed not in (0, lines - 1)
        or type(shared) is not dict
        or (shared.get("cell"), shared.get("fingerprint")) != (key, fingerprint_of(path))
    ):
        return None
    return Block(shared, rows)


def are_sound(blocks: Sequence[Block]) -> bool:
    """Tell whether every row has exactly the columns of a row, and what belongs there."""
    return is_sound(SHARED, [each.shared for each in blocks]) and is_sound(
        OWN, [row for each in blocks for row in each.rows]
    )


def renamed(block: Block) -> Block:
    """Return a sound block as this version writes it: see `runners.storage.schema_1`."""
    if block.shared["schema"] != 1:
        return block
    return block._replace(shared={**block.shared, "model": schema_1.model(block.shared)})


def blocks_of(rows: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
    """Yield rows that were checked as blocks."""
    for values, alike in groupby(rows, key=_shared_values):
        yield Block(dict(zip(SHARED, values, strict=True)), [*alike])


def sound_block(path: Path, key: str) -> Block | None:
    """Return a file's rows, checked; None as `block_in`, or where they are not sound."""
    found = block_in(path, key)
    return renamed(found) if found is not None and are_sound([found]) else None
