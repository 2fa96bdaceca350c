"""Write a table as HTML for a notebook, with title, caption and all footnotes."""

from lra.reports.page.markup import render
from lra.reports.tables.table import Table, groups_of, sections_of


def to_html_alone(table: Table) -> str:
    """Return a table as a fragment of HTML without scripts, classes and links; text is escaped."""
    return render(
        "table_alone.html.j2",
        table=table,
        groups=groups_of(table.columns),
        sections=sections_of(table.rows),
    )
