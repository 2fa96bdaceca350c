"""What a terminal shows beyond plain text: wrapped columns, colour, boxes. A pipe gets plain text.

Everything here prints byte for byte what `print` would, unless the stream is a terminal. `rich`
chooses colours and boxes by what the terminal, NO_COLOR and the encoding allow.
"""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from lra.terminal.screen import beneath, encodable, one_line, table

if TYPE_CHECKING:
    from rich.console import Console

NARROW = 64
"""Columns of a terminal below which a line of a table becomes a block."""
PLAIN_TERMINALS = frozenset({"dumb", "unknown", ""})
NAMES = re.compile(r"'[^'\n]{1,80}'|`[^`\n]+`")
"""What an error is about, and commands."""
KEYS = re.compile(r"(?<![\w/.'`])(?:[a-z_.]+=[^\s?;,]+|[a-z_]+(?:\.[a-z_]+)+(?=:| |$))")
"""Keys, with values where these stand behind them."""


def console_of(stream: TextIO) -> "Console | None":
    """Return what writes to a terminal; None for a pipe, a file, and a terminal of text alone."""
    if not stream.isatty() or os.environ.get("TERM", "") in PLAIN_TERMINALS:
        return None
    from rich.console import Console

    return Console(file=beneath(stream), highlight=False, markup=False, emoji=False)


def print_table(rows: Sequence[Sequence[str]], *, indent: str = "  ", header: bool = False) -> None:
    """Print aligned columns; on a terminal, texts are wrapped within theirs.

    Args:
        rows: Of equal length.
        indent: Before every line.
        header: Whether the first row names the columns.
    """
    rows = [[one_line(cell) for cell in row] for row in rows]
    if (console := console_of(sys.stdout)) is None:
        print(table(rows, indent=indent))
        return
    rows = [[encodable(cell, sys.stdout) for cell in row] for row in rows]
    first = max(len(row[0]) for row in rows)
    if console.width < max(NARROW, first + 40):
        _print_blocks(console, rows)
        return
    from rich.padding import Padding
    from rich.table import Table as Columns

    columns = Columns(box=None, show_header=header, pad_edge=False, padding=(0, 2, 0, 0))
    names = rows[0] if header else [""] * len(rows[0])
    for number, name in enumerate(names):
        columns.add_column(
            name, no_wrap=number == 0, style="bold" if number == 0 else "", overflow="fold"
        )
    for row in rows[1:] if header else rows:
        columns.add_row(*row)
    console.print(Padding(columns, (0, 0, 0, len(indent))))


def _print_blocks(console: "Console", rows: Sequence[Sequence[str]]) -> None:
    """Print the first cell of each row on a line of its own, the others below it."""
    from rich.padding import Padding
    from rich.text import Text

    for name, *others in rows:
        console.print(Text(name, style="bold"), overflow="fold")
        for other in others:
            if other.strip():
                console.print(Padding(Text(other.strip(), overflow="fold"), (0, 0, 0, 4)))


def complain(message: str) -> None:
    """Print an error on stderr; on a terminal, what it is about stands out."""
    if (console := console_of(sys.stderr)) is None:
        print(f"lra: {encodable(message, sys.stderr)}", file=sys.stderr)
        return
    from rich.text import Text

    line = Text.assemble(("lra: ", "bold red"), encodable(message, sys.stderr))
    line.highlight_regex(NAMES, style="bold")
    line.highlight_regex(KEYS, style="cyan")
    console.print(line, soft_wrap=True)


@contextmanager
def busy(what: str) -> Iterator[None]:
    """Show that something goes on, on a terminal; it goes away at the end."""
    if (console := console_of(sys.stderr)) is None:
        yield
        return
    with console.status(encodable(what, sys.stderr), spinner="line"):
        yield
