"""A table as HTML that stands by itself, as in a notebook: title, caption and every footnote."""

from lra.reports.page.markup import render
from lra.reports.tables.table import Table, groups_of, sections_of


def to_html_alone(table: Table) -> str:
    """Render a fragment without scripts, classes or links; all text is escaped."""
    return render(
        "table_alone.html.j2",
        table=table,
        groups=groups_of(table.columns),
        sections=sections_of(table.rows),
    )
