"""A table of results: Markdown in a pipe, columns with rules on a terminal."""

import sys
from typing import TYPE_CHECKING

from lra.reports.tables.table import Entry, Table, to_markdown
from lra.terminal.console import console_of
from lra.terminal.screen import encodable

if TYPE_CHECKING:
    from rich.text import Text


def print_result(result: Table) -> None:
    """Print a table of results, behind an empty line: as Markdown, or with rules on a terminal."""
    plain = "\n" + to_markdown(result).rstrip()
    if (console := console_of(sys.stdout)) is None:
        print(plain)
        return
    from rich import box
    from rich.measure import Measurement
    from rich.table import Table as Columns
    from rich.text import Text

    def text(words: str, style: str = "") -> Text:
        return Text(encodable(words, sys.stdout), style=style)

    columns = Columns(box=box.SIMPLE_HEAD, pad_edge=False)
    columns.add_column(text(result.stub), style="bold")
    for column in result.columns:
        title = f"{column.group}\n{column.title}" if column.group else column.title
        columns.add_column(text(title), justify="left" if column.words else "right")
    section = ""
    for row in result.rows:
        if row.section != section:
            section = row.section
            columns.add_section()
            columns.add_row(text(section, "italic"))
        columns.add_row(text(row.title), *(_entry_text(result, entry) for entry in row.entries))
    wide = console.options.update_width(10_000)
    if Measurement.get(console, wide, columns).minimum > console.width:
        print(encodable(plain, sys.stdout))
        return
    console.print()
    console.print(Text.assemble(text(f"{result.title}. ", "bold"), text(result.caption, "dim")))
    console.print(columns)
    for number, note in enumerate(result.footnotes(), 1):
        console.print(text(f"[{number}] {note}", "dim"))


def _entry_text(result: Table, entry: Entry) -> "Text":
    from rich.text import Text

    number, rest = result.number(entry)
    style = {1: "bold", 2: "underline"}.get(entry.rank, "" if entry.status == "ok" else "yellow")
    marks = "".join(f" [{mark}]" for mark in result.numbers(entry))
    parts = ((number, style), (rest, ""), (marks, "dim"))
    return Text.assemble(*((encodable(words, sys.stdout), look) for words, look in parts))
