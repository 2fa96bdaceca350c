"""Text read as blocks of whole lines, checked to be UTF-8, so that no corpus is whole in memory."""

from collections.abc import Iterator
from io import BufferedIOBase, IOBase
from typing import IO, Any, NamedTuple

from tasks.errors import BadData

BLOCK_BYTES = 1 << 22
LONGEST_LINE = 1 << 26
"""Characters; no corpus here has a line of a fortieth of that."""


class LineBlock(NamedTuple):
    """Some whole lines of one text."""

    text: bytes
    """UTF-8; ends with a line end, but for the last block of a book."""
    where: str
    """The file, or the split of a data set."""
    line: int
    """Number of the first line, from 1."""


def blocks(file: BufferedIOBase | IO[bytes], where: str) -> Iterator[LineBlock]:
    """Yield the lines of a file; one that is not ended gets its line end.

    Raises:
        BadData: It is empty or no UTF-8.
    """
    line, offset = 1, 0
    while text := file.read(BLOCK_BYTES):
        text += file.readline(LONGEST_LINE)
        if len(text) > LONGEST_LINE and not text.endswith(b"\n"):
            raise too_long(where, line)
        check_utf8(text, where, offset)
        offset += len(text)
        if not text.endswith(b"\n"):
            text += b"\n"
        yield LineBlock(text, where, line)
        line += text.count(b"\n")
    if not offset:
        raise BadData(f"{where} is empty (0 bytes): fetch it again")


def whole_lines(file: IO[Any] | IOBase, where: str) -> Iterator[Any]:
    """Yield the lines of a file, text or bytes, none of which may fill the memory or be cut.

    Args:
        file: The file.
        where: Names it.

    Raises:
        BadData: One is longer than `LONGEST_LINE`, or the last one has no line end.
    """
    number = 0
    while line := file.readline(LONGEST_LINE):
        number += 1
        if len(line) == LONGEST_LINE:
            raise too_long(where, number)
        if line[-1:] not in (b"\n", "\n"):
            raise BadData(
                f"{where}, line {number}: the last line has no end, so it may be cut: fetch the "
                "file again; or end the line if it is whole, else remove what it belongs to"
            )
        yield line


def too_long(where: str, number: int) -> BadData:
    """Return the error for a line that goes on and on."""
    return BadData(
        f"{where}, line {number}: more than {LONGEST_LINE:,} characters in one line: is this "
        "another file?"
    )


def cut(text: bytes, where: str) -> Iterator[LineBlock]:
    """Yield a text that is in memory as blocks of whole lines, unchanged."""
    line, first = 1, 0
    while first < len(text):
        last = text.find(b"\n", first + BLOCK_BYTES) + 1 or len(text)
        block = text[first:last]
        yield LineBlock(block, where, line)
        line, first = line + block.count(b"\n"), last


def check_utf8(text: bytes, where: str, offset: int = 0) -> None:
    """Raise `BadData` unless the bytes are UTF-8.

    Args:
        text: Whole characters.
        where: Names the file.
        offset: Of the text's first byte in the file.
    """
    try:
        text.decode()
    except UnicodeDecodeError as error:
        wrong = text[error.start : error.start + 4]
        raise BadData(
            f"{where}: byte {offset + error.start:,} is no UTF-8 ({wrong!r}: {error.reason}): "
            "fetch the file again, or convert it to UTF-8"
        ) from error
