"""A table as HTML, which the page's script makes sortable."""

from collections.abc import Collection, Sequence

from reports.page.markup import render
from reports.rows import MARKS
from reports.tables.table import Entry, Table, groups_of, sections_of

MOST_LINES = 1_500
"""Of one table on the page; its files have all."""
_LINKED = 12
"""Cells that one link names."""


def to_html(table: Table, file: str = "", reasons: Collection[str] = ()) -> str:
    """Render a fragment without scripts; the page around it brings style and sorting.

    Why a cell failed stands in the page's list of failures, so notes of failures are left out here.

    Args:
        table: what to render.
        file: name of its files, which makes the element's id.
        reasons: for which cells failed, as notes say them.
    """
    known = frozenset(reasons)
    kept = table.rows[:MOST_LINES]

    def own(entry: Entry) -> tuple[str, ...]:
        if entry.status in MARKS and entry.cells:
            return ()
        return tuple(note for note in entry.notes if note not in known)

    notes = list(dict.fromkeys(note for row in kept for e in row.entries for note in own(e)))
    left_out = len(table.rows) - len(kept)
    if left_out:
        notes.append(f"and {left_out:,} lines more, which are in {file}.csv")
    return render(
        "table.html.j2",
        table=table,
        file=file,
        groups=groups_of(table.columns),
        sections=sections_of(kept),
        sectioned=any(row.section for row in kept),
        notes=notes,
        numbers=lambda entry: [notes.index(note) + 1 for note in own(entry)],
        order=_order,
        link=link,
    )


def link(cells: Sequence[str]) -> str:
    """Return the address, within the page, of what is known of cells."""
    return "#cell-" + ",".join(cells[:_LINKED])


def _order(entry: Entry) -> str:
    """Return the number by which an entry is sorted; nothing for one that comes last."""
    return "" if entry.value is None else repr(float(entry.value))
