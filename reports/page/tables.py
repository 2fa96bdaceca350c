"""A table as HTML."""

from reports.page.markup import render
from reports.tables import Table, groups_of, sections_of


def to_html(table: Table) -> str:
    """Render a fragment without scripts; the page around it brings the style."""
    return render(
        "table.html.j2", table=table, groups=groups_of(table.columns),
        sections=sections_of(table.rows),
    )  # fmt: skip
