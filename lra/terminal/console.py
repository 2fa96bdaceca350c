"""Print with wrapped columns and colours on a terminal, and as plain text into a pipe.

If the stream is not a terminal, every function prints the same bytes as `print`. On a terminal, the
package `rich` uses the colours and boxes that the terminal, NO_COLOR and the encoding allow.
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
"""On a terminal with fewer columns, each row of a table becomes a block of lines."""
PLAIN_TERMINALS = frozenset({"dumb", "unknown", ""})
NAMES = re.compile(r"'[^'\n]{1,80}'|`[^`\n]+`")
"""Matches quoted names and commands in the message of an error."""
KEYS = re.compile(r"(?<![\w/.'`])(?:[a-z_.]+=[^\s?;,]+|[a-z_]+(?:\.[a-z_]+)+(?=:| |$))")
"""Matches keys of options, such as optim.steps, and KEY=VALUE."""


def console_of(stream: TextIO) -> "Console | None":
    """Return a rich console if `stream` is a terminal that can draw; None otherwise."""
    if not stream.isatty() or os.environ.get("TERM", "") in PLAIN_TERMINALS:
        return None
    from rich.console import Console

    return Console(file=beneath(stream), highlight=False, markup=False, emoji=False)


def print_table(rows: Sequence[Sequence[str]], *, indent: str = "  ", header: bool = False) -> None:
    """Print rows in aligned columns; on a terminal, a long text is wrapped within its column.

    Args:
        rows: The rows, all of equal length.
        indent: Text in front of every line.
        header: Whether the first row contains the names of the columns.
    """
    rows = [[one_line(cell) for cell in row] for row in rows]
    if (console := console_of(sys.stdout)) is None:
        print(table(rows, indent=indent))
        return
    rows = [[encodable(cell, sys.stdout) for cell in row] for row in rows]
    first_width = max(len(row[0]) for row in rows)
    if console.width < max(NARROW, first_width + 40):
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
    """Print, for a narrow terminal, the first cell of each row and its other cells below it."""
    from rich.padding import Padding
    from rich.text import Text

    for name, *others in rows:
        console.print(Text(name, style="bold"), overflow="fold")
        for other in others:
            if other.strip():
                console.print(Padding(Text(other.strip(), overflow="fold"), (0, 0, 0, 4)))


def complain(message: str) -> None:
    """Print an error on stderr; on a terminal, names, commands and keys are highlighted."""
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
    """Show `what` with a moving sign on a terminal while the `with` block runs."""
    if (console := console_of(sys.stderr)) is None:
        yield
        return
    with console.status(encodable(what, sys.stderr), spinner="line"):
        yield
