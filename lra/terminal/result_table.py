"""Print a table of results: as Markdown in a pipe, with columns and rules on a terminal."""

import sys
from typing import TYPE_CHECKING

from lra.reports.tables.table import Entry, Table, to_markdown
from lra.terminal.console import console_of
from lra.terminal.screen import encodable

if TYPE_CHECKING:
    from rich.text import Text


def print_result(result: Table) -> None:
    """Print an empty line and `result`: with rules on a wide terminal, otherwise as Markdown."""
    plain = "\n" + to_markdown(result).rstrip()
    if (console := console_of(sys.stdout)) is None:
        print(plain)
        return
    from rich import box
    from rich.measure import Measurement
    from rich.table import Table as Columns
    from rich.text import Text

    def style_text(words: str, style: str = "") -> Text:
        return Text(encodable(words, sys.stdout), style=style)

    columns = Columns(box=box.SIMPLE_HEAD, pad_edge=False)
    columns.add_column(style_text(result.stub), style="bold")
    for column in result.columns:
        title = f"{column.group}\n{column.title}" if column.group else column.title
        columns.add_column(style_text(title), justify="left" if column.words else "right")
    section = ""
    for row in result.rows:
        if row.section != section:
            section = row.section
            columns.add_section()
            columns.add_row(style_text(section, "italic"))
        entries = (_style_entry(result, entry) for entry in row.entries)
        columns.add_row(style_text(row.title), *entries)
    # Rich would cut entries of a table that is too wide.
    unlimited = console.options.update_width(10_000)
    if Measurement.get(console, unlimited, columns).minimum > console.width:
        print(encodable(plain, sys.stdout))
        return
    title_text = style_text(f"{result.title}. ", "bold")
    console.print()
    console.print(Text.assemble(title_text, style_text(result.caption, "dim")))
    console.print(columns)
    for number, note in enumerate(result.footnotes(), 1):
        console.print(style_text(f"[{number}] {note}", "dim"))


def _style_entry(result: Table, entry: Entry) -> "Text":
    """Return an entry with its marks; the best number is bold, the second best is underlined."""
    from rich.text import Text

    number, rest = result.number(entry)
    style = {1: "bold", 2: "underline"}.get(entry.rank, "" if entry.status == "ok" else "yellow")
    marks = "".join(f" [{mark}]" for mark in result.numbers(entry))
    parts = ((number, style), (rest, ""), (marks, "dim"))
    return Text.assemble(*((encodable(words, sys.stdout), look) for words, look in parts))
