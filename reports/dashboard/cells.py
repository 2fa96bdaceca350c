"""Which cells share a run: each stands in one, whichever part of a sweep comes first.

The cells of one curve, equal in all but length and mode, are one run, and so are all baselines. A
later part of a curve, from another shard or a longer sweep, is a run of its own beside the first:
nothing is replaced.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from reports.dashboard.describe import group, is_baseline
from reports.rows import TIMED
from runners.records import CELL_COLUMNS, digest


def curves(
    rows: Mapping[str, Sequence[Any]], cells: Mapping[str, Mapping[str, Any]]
) -> list[list[str]]:
    """Return the cells that belong together: one curve of cost, all baselines, any other alone.

    Args:
        rows: of each cell, as a prepared table has them, columns as attributes.
        cells: what the store says of each; without an identity, the columns stand for it.
    """
    found: dict[str, list[str]] = {}
    for cell, own in rows.items():
        timed = any(row.metric in TIMED and row.length is not pd.NA for row in own)
        identity = cells.get(cell, {}).get("identity") or {
            column: str(getattr(own[0], column)) for column in CELL_COLUMNS
        }
        baseline = all(is_baseline(row.model) for row in own)
        name = group(cell, identity, baseline=baseline, curve=timed)
        found.setdefault(name, []).append(cell)
    return list(found.values())


def shared_out(
    together: Sequence[Sequence[str]],
    own: Collection[str],
    known: Mapping[str, Mapping[str, str]],
    contents: Mapping[str, str],
    sweep: str,
) -> Iterator[tuple[str, list[str]]]:
    """Yield id and cells of each run that has a cell of `own`.

    A run that exists keeps its cells. Where not all of them have rows now, it stays as it is, and
    what has changed of it goes into a run of its own.

    Args:
        together: cells that have rows, those of one curve in one group.
        own: cells to send.
        known: runs of this sweep that exist: the content of each of their cells.
        contents: what every cell that has rows holds now.
        sweep: part of every new id.
    """
    homes: dict[str, str] = {}
    for name, cells in known.items():
        for cell, content in cells.items():
            if cell not in homes or content == contents.get(cell):
                homes[cell] = name
    for curve in together:
        members = [cell for cell in curve if cell in own]
        old = list(dict.fromkeys(homes[cell] for cell in members if cell in homes))
        whole = [name for name in old if known[name].keys() <= contents.keys()]
        for name in whole:
            yield name, sorted(known[name])
        fresh = sorted(
            cell
            for cell in members
            if cell not in homes
            or (homes[cell] not in whole and known[homes[cell]][cell] != contents[cell])
        )
        if fresh:
            yield digest([sweep, *fresh], digits=16), fresh
