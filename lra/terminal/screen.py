"""What reaches a terminal: text without orders to it, and lines that are drawn again and again.

Names, reasons and notes are read back from files that anybody may have written. `plainly_written`
is the one place through which a command prints: what would steer a terminal is escaped there.
Who steers it, to draw a bar or a table, writes to the stream beneath.
"""

import os
import re
import sys
import unicodedata
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO, cast

Size = Callable[[], os.terminal_size]
BLOCKS = " ▏▎▍▌▋▊▉█"
PLAIN = " #"
BAR = 1 / 10
"""Share of a line's columns that a bar takes."""


_STEERING = r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_CONTROLS = re.compile(f"[{_STEERING}\r]")
_BUT_FOR_BARS = re.compile(rf"(?!\x1b\[A)[{_STEERING}]")
"""A bar of tqdm, in any library, goes to the begin of its line, and to the line above."""


def escape(text: str) -> str:
    """Return a text whose control characters, but for ends of lines and tabs, are escaped.

    Those that change the direction of writing as well.
    """
    return _CONTROLS.sub(_code_of, text)


def one_line(text: str) -> str:
    """Return an escaped text, with its ends of lines escaped as well."""
    return escape(text).replace("\n", "\\n")


def _code_of(match: re.Match[str], short: int = 0x100) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < short else f"\\u{code:04x}"


def _code_in_json(match: re.Match[str]) -> str:
    """Spell out what JSON may hold as it is so that it stays JSON."""
    return _code_of(match, 0x20)


class _Plain:
    """A stream that spells out what would steer a terminal."""

    def __init__(self, beneath: TextIO, controls: re.Pattern[str]) -> None:
        self.beneath, self.controls = beneath, controls

    def write(self, text: str) -> int:
        """Write a text; return its length."""
        self.beneath.write(self.controls.sub(_code_in_json, text))
        return len(text)

    def writelines(self, lines: Sequence[str]) -> None:
        """Write texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.beneath, name)


@contextmanager
def plainly_written() -> Iterator[None]:
    """Have all that is printed in the block spell out what would steer a terminal."""
    before = sys.stdout, sys.stderr
    sys.stdout = cast(TextIO, _Plain(sys.stdout, _CONTROLS))
    sys.stderr = cast(TextIO, _Plain(sys.stderr, _BUT_FOR_BARS))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def beneath(stream: TextIO) -> TextIO:
    """Return the stream for what steers the terminal, all text in it escaped."""
    return stream.beneath if isinstance(stream, _Plain) else stream


def on_terminal(*streams: TextIO) -> bool:
    """Tell whether all streams are terminals on which lines can be drawn again."""
    return all(stream.isatty() for stream in streams) and os.environ.get("TERM", "") != "dumb"


class Region:
    """The lines that are drawn now. Survives a change of the terminal's size."""

    def __init__(self, stream: TextIO, size: Size | None = None) -> None:
        self.stream = beneath(stream)
        self.size = size or (lambda: os.get_terminal_size(stream.fileno()))
        self.drawn: list[int] = []
        """Columns of the lines on the screen."""

    def room(self) -> tuple[int, int]:
        """Return columns and rows; the last column stays free, where some terminals wrap."""
        columns, rows = self.size()
        return max(10, (columns or 80) - 1), max(2, rows or 24)

    def draw(self, lines: Sequence[str]) -> None:
        """Replace what is drawn; a line that is too long is cut."""
        columns, _ = self.room()
        cut = [
            encodable(trim(encodable(one_line(line), self.stream), columns), self.stream)
            for line in lines
        ]
        self.stream.write(self._home() + "\n".join(cut))
        self.stream.flush()
        self.drawn = [width(line) for line in cut]

    def clear(self) -> None:
        """Remove what is drawn."""
        if self.drawn:
            self.stream.write(self._home())
            self.stream.flush()
            self.drawn = []

    def _home(self) -> str:
        """Return what moves to the begin of the first drawn line and wipes from there.

        A terminal that has become narrower shows a long line in several rows.
        """
        columns, _ = self.size()
        rows = sum(-(-max(1, wide) // max(1, columns or 80)) for wide in self.drawn)
        up = f"\x1b[{rows - 1}A" if rows > 1 else ""
        return f"{up}\r\x1b[J" if self.drawn else ""


def width(text: str) -> int:
    """Return the columns that a text takes."""
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(unicodedata.combining(letter) > 0 for letter in text)


def trim(text: str, columns: int) -> str:
    """Return a text, or its beginning and an ellipsis where it is too wide."""
    if width(text) <= columns:
        return text
    cut = text
    while cut and width(cut) > columns - 1:
        cut = cut[:-1]
    return cut.rstrip() + "…"


def squeeze(text: str, columns: int) -> str:
    """Return a text, or its two ends where it is too wide: cells differ at the end."""
    if width(text) <= columns:
        return text
    end = text
    while end and width(end) > columns * 3 // 5:
        end = end[1:]
    begin = trim(text, columns - width(end))
    return begin + end.lstrip()


def encodable(text: str, stream: TextIO) -> str:
    """Return a text as the stream can write it: what it cannot, or must not, is escaped."""
    text = escape(text)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    if not encoding.lower().startswith("utf"):
        text = text.replace("…", "~")
    return text.encode(encoding, "backslashreplace").decode(encoding)


def gauge(share: float, cells: int, stream: TextIO) -> str:
    """Return a bar of so many cells, filled up to `share` of it."""
    steps = BLOCKS if encodable("█", stream) == "█" else PLAIN
    parts = len(steps) - 1
    filled, rest = divmod(int(min(1.0, max(0.0, share)) * cells * parts), parts)
    return (steps[-1] * filled + (steps[rest] if rest else "")).ljust(cells)


def bar_line(share: float | None, text: Callable[[int], str], columns: int, stream: TextIO) -> str:
    """Return a line with a bar and a text; without the bar where there is no room for both.

    Args:
        share: what the bar shows; None: nothing to show.
        text: returns the text for so many columns.
        columns: of the whole line.
        stream: where it goes.
    """
    if share is None:
        return text(columns)
    number = f"{int(100 * share):3}%"
    whole = text(columns * 10)
    cells = int(BAR * columns)
    if len(number) + cells + width(whole) + 4 > columns:
        return f"{number} {text(columns - len(number) - 1)}"
    return f"{number} |{gauge(share, cells, stream)}| {whole}"


def table(rows: Sequence[Sequence[str]], *, indent: str = "  ") -> str:
    """Align columns by spaces; the last column is left ragged."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append((indent + "  ".join(cells)).rstrip())
    return "\n".join(lines)


def flush_right(rows: Sequence[Sequence[str]], *, but: Collection[int] = (0,)) -> list[list[str]]:
    """Return rows with columns of numbers flush right, `but` those of words."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        [cell if n in but else cell.rjust(widths[n]) for n, cell in enumerate(row)] for row in rows
    ]
