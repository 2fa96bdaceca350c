"""A terminal in memory: what a person would see of the bytes that a program writes."""

import re

PIECE = re.compile(r"\x1b\[(\d*)([A-Za-z])|\r|\n|[^\x1b\r\n]+")


class Screen:
    """Knows what is used here: text that wraps, `\\r`, `\\n`, cursor up, erase below."""

    def __init__(self, columns: int, rows: int = 24) -> None:
        self.columns, self.rows = columns, rows
        self.lines: list[list[str]] = [[]]
        self.row = self.column = 0
        self.wrapped = 0
        """Times a text ran over the right edge."""

    def feed(self, text: str) -> None:
        consumed = 0
        for piece in PIECE.finditer(text):
            consumed += len(piece[0])
            if piece[2] == "A":
                top = max(0, len(self.lines) - self.rows)
                self.row = max(top, self.row - int(piece[1] or 1))
            elif piece[2] == "J":
                self.lines[self.row] = self.lines[self.row][: self.column]
                del self.lines[self.row + 1 :]
            elif piece[2]:
                raise ValueError(f"unknown escape {piece[0]!r}")
            elif piece[0] == "\r":
                self.column = 0
            elif piece[0] == "\n":
                self._down()
                self.column = 0  # as a terminal's line discipline does
            else:
                self._write(piece[0])
        assert consumed == len(text), text

    def _write(self, text: str) -> None:
        for letter in text:
            if self.column == self.columns:
                self.wrapped += 1
                self._down()
                self.column = 0
            line = self.lines[self.row]
            line += [" "] * (self.column - len(line))
            line[self.column : self.column + 1] = [letter]
            self.column += 1

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append([])

    @property
    def text(self) -> list[str]:
        return ["".join(line).rstrip() for line in self.lines]
