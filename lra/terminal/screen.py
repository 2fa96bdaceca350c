"""Print to a terminal safely: escape control characters, and redraw lines in place.

Names, reasons and notes come from files that anybody may have written, and could contain sequences
that control a terminal. Every command prints inside `plainly_written`, which escapes them. Code
that controls the terminal itself, to draw a bar or a table, writes to `beneath(stream)`.
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
"""The width of a progress bar, as a share of the line."""


_STEERING = r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_CONTROLS = re.compile(f"[{_STEERING}\r]")
_BUT_FOR_BARS = re.compile(rf"(?!\x1b\[A)[{_STEERING}]")
"""Control characters except those of tqdm's bars: to the start of a line, and to the line above."""


def escape(text: str) -> str:
    """Return `text` with its control characters escaped, except line ends and tabs.

    Characters that change the direction of writing are escaped, too.
    """
    return _CONTROLS.sub(_escape_character, text)


def one_line(text: str) -> str:
    """Return `text` with all control characters escaped, including line ends."""
    return escape(text).replace("\n", "\\n")


def _escape_character(match: re.Match[str], short: int = 0x100) -> str:
    """Return the code of the matched character: two digits if it is below `short`, else four."""
    code = ord(match[0])
    return f"\\x{code:02x}" if code < short else f"\\u{code:04x}"


def _escape_for_json(match: re.Match[str]) -> str:
    """Return the code of the matched character as JSON allows it: with four digits from 0x20 on."""
    return _escape_character(match, 0x20)


class _Plain:
    """A stream that escapes the characters `controls` and writes to the stream `beneath`."""

    def __init__(self, beneath: TextIO, controls: re.Pattern[str]) -> None:
        self.beneath, self.controls = beneath, controls

    def write(self, text: str) -> int:
        """Write `text` with its control characters escaped, and return its length."""
        self.beneath.write(self.controls.sub(_escape_for_json, text))
        return len(text)

    def writelines(self, lines: Sequence[str]) -> None:
        """Write several texts, which contain their line ends."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.beneath, name)


@contextmanager
def plainly_written() -> Iterator[None]:
    """Escape, in everything that the `with` block prints, what would control a terminal."""
    before = sys.stdout, sys.stderr
    sys.stdout = cast(TextIO, _Plain(sys.stdout, _CONTROLS))
    sys.stderr = cast(TextIO, _Plain(sys.stderr, _BUT_FOR_BARS))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def beneath(stream: TextIO) -> TextIO:
    """Return the stream below `plainly_written`, for code that escapes its text itself."""
    return stream.beneath if isinstance(stream, _Plain) else stream


def on_terminal(*streams: TextIO) -> bool:
    """Return whether all streams are terminals on which lines can be drawn again."""
    return all(stream.isatty() for stream in streams) and os.environ.get("TERM", "") != "dumb"


class Region:
    """The bottom lines of a terminal, which can be redrawn even after its size has changed."""

    def __init__(self, stream: TextIO, size: Size | None = None) -> None:
        self.stream = beneath(stream)
        self.size = size or (lambda: os.get_terminal_size(stream.fileno()))
        self.drawn: list[int] = []
        """The width of each line that is on the screen now, in columns."""

    def room(self) -> tuple[int, int]:
        """Return the columns and rows that can be used.

        The last column stays free, because some terminals wrap a line that fills it.
        """
        columns, rows = self.size()
        return max(10, (columns or 80) - 1), max(2, rows or 24)

    def draw(self, lines: Sequence[str]) -> None:
        """Replace the drawn lines by `lines`; cut each line to the width of the terminal."""
        columns, _ = self.room()
        cut = [
            encodable(trim(encodable(one_line(line), self.stream), columns), self.stream)
            for line in lines
        ]
        self.stream.write(self._move_home() + "\n".join(cut))
        self.stream.flush()
        self.drawn = [width(line) for line in cut]

    def clear(self) -> None:
        """Remove the drawn lines from the screen."""
        if self.drawn:
            self.stream.write(self._move_home())
            self.stream.flush()
            self.drawn = []

    def _move_home(self) -> str:
        """Return the control codes that move to the first drawn line and clear from there on.

        A line can fill several rows, if the terminal has become narrower since it was drawn.
        """
        columns, _ = self.size()
        rows = sum(-(-max(1, line) // max(1, columns or 80)) for line in self.drawn)  # rounded up
        up = f"\x1b[{rows - 1}A" if rows > 1 else ""
        return f"{up}\r\x1b[J" if self.drawn else ""


def width(text: str) -> int:
    """Return how many columns `text` takes: a Chinese character two, a combining accent none."""
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(unicodedata.combining(letter) > 0 for letter in text)


def trim(text: str, columns: int) -> str:
    """Return `text` or, if it is wider than `columns`, its beginning and an ellipsis."""
    if width(text) <= columns:
        return text
    cut = text
    while cut and width(cut) > columns - 1:
        cut = cut[:-1]
    return cut.rstrip() + "…"


def squeeze(text: str, columns: int) -> str:
    """Return `text` or, if it is wider than `columns`, its beginning, an ellipsis and its end."""
    if width(text) <= columns:
        return text
    end = text  # it gets more room than the beginning, because titles of runs differ at their ends
    while end and width(end) > columns * 3 // 5:
        end = end[1:]
    begin = trim(text, columns - width(end))
    return begin + end.lstrip()


def encodable(text: str, stream: TextIO) -> str:
    """Return `text` with the characters escaped that `stream` cannot encode, or must not print."""
    text = escape(text)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    if not encoding.lower().startswith("utf"):
        text = text.replace("…", "~")
    return text.encode(encoding, "backslashreplace").decode(encoding)


def gauge(share: float, cells: int, stream: TextIO) -> str:
    """Return a bar that is filled up to `share` (0 to 1) of its `cells` characters.

    If `stream` can print block characters, the last character is filled in eighths.
    """
    blocks = BLOCKS if encodable("█", stream) == "█" else PLAIN
    parts = len(blocks) - 1
    filled, rest = divmod(int(min(1.0, max(0.0, share)) * cells * parts), parts)
    return (blocks[-1] * filled + (blocks[rest] if rest else "")).ljust(cells)


def bar_line(share: float | None, text: Callable[[int], str], columns: int, stream: TextIO) -> str:
    """Return a line with a percentage, a bar and a text; without the bar if they do not fit.

    Args:
        share: The filled share of the bar, from 0 to 1; None: return the text alone.
        text: Returns the text, shortened to a number of columns.
        columns: The width of the whole line.
        stream: The stream that prints the line.
    """
    if share is None:
        return text(columns)
    percentage = f"{int(100 * share):3}%"
    full_text = text(columns * 10)  # not shortened
    cells = int(BAR * columns)
    if len(percentage) + cells + width(full_text) + 4 > columns:  # 4: bars and blanks
        return f"{percentage} {text(columns - len(percentage) - 1)}"
    return f"{percentage} |{gauge(share, cells, stream)}| {full_text}"


def table(rows: Sequence[Sequence[str]], *, indent: str = "  ") -> str:
    """Return rows as lines with columns aligned by spaces, and no spaces at their ends."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append((indent + "  ".join(cells)).rstrip())
    return "\n".join(lines)


def flush_right(rows: Sequence[Sequence[str]], *, but: Collection[int] = (0,)) -> list[list[str]]:
    """Return rows with every column flush right, except the columns with the numbers `but`."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        [cell if n in but else cell.rjust(widths[n]) for n, cell in enumerate(row)] for row in rows
    ]
