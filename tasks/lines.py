"""Text read as blocks of whole lines, checked to be UTF-8, so that no corpus is whole in memory."""

from collections.abc import Iterator
from io import BufferedIOBase
from typing import IO, NamedTuple

from tasks.errors import BadData

BLOCK_BYTES = 1 << 22


class Block(NamedTuple):
    """Some whole lines of one text."""

    text: bytes
    """UTF-8; ends with a line end, but for the last block of a book."""
    where: str
    """The file, or the split of a data set."""
    line: int
    """Number of the first line, from 1."""


def blocks(file: BufferedIOBase | IO[bytes], where: str) -> Iterator[Block]:
    """Yield the lines of a file; one that is not ended gets its line end.

    Raises:
        BadData: It is empty or no UTF-8.
    """
    line, offset = 1, 0
    while text := file.read(BLOCK_BYTES):
        text += file.readline()
        check_utf8(text, where, offset)
        offset += len(text)
        if not text.endswith(b"\n"):
            text += b"\n"
        yield Block(text, where, line)
        line += text.count(b"\n")
    if not offset:
        raise BadData(f"{where} is empty (0 bytes): fetch it again")


def cut(text: bytes, where: str) -> Iterator[Block]:
    """Yield a text that is in memory as blocks of whole lines, unchanged."""
    line, first = 1, 0
    while first < len(text):
        last = text.find(b"\n", first + BLOCK_BYTES) + 1 or len(text)
        block = text[first:last]
        yield Block(block, where, line)
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
