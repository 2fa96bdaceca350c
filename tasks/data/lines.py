"""Readers of text by lines or by blocks of whole lines, so that a corpus need not fit into memory.

They remove a byte order mark, and replace line ends that are a carriage return alone, as on old
Macs, by line feeds. They refuse UTF-16 and UTF-32.
"""

import codecs
from collections.abc import Iterator
from io import BufferedIOBase, BufferedReader, BytesIO, IOBase, RawIOBase
from typing import IO, Any, NamedTuple

from lra.tasks.data.sources import CHUNK_BYTES
from lra.tasks.errors import BadData

BLOCK_BYTES = 1 << 22
LONGEST_LINE = 1 << 26
"""Most characters of a line; the known corpora stay below a fortieth of this."""
OTHER_ENCODINGS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
"""Name of the encoding for each byte order mark; a longer mark before one that begins it."""


class LineBlock(NamedTuple):
    """Some whole lines of one text."""

    text: bytes
    """UTF-8; ends with a line end, except for the last block of a book."""
    where: str
    """Name of the file, or of the split of a data set."""
    line: int
    """Number of the first line, from 1."""


class _PlainText(RawIOBase):
    """A text of which `start` is already read; if `alone`, carriage returns become line feeds."""

    def __init__(self, file: BufferedIOBase | IO[bytes], start: bytes, alone: bool) -> None:
        super().__init__()
        self.file, self.start, self.alone = file, BytesIO(start), alone

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer`, first from `start`; return the number of bytes, 0 at the end."""
        data = self.start.read(len(buffer)) or self.file.read(len(buffer))
        buffer[: len(data)] = data.replace(b"\r", b"\n") if self.alone else data
        return len(data)


def plain_text(file: BufferedIOBase | IO[bytes], where: str) -> BufferedReader:
    """Return a reader of the text without byte order mark, and with line feeds as line ends.

    Carriage returns are line ends if the first `LONGEST_LINE` bytes have no line feed. `where`
    names the text in messages.

    Raises:
        BadData: The text is UTF-16 or UTF-32.
    """
    start = file.readline(LONGEST_LINE)
    check_encoding(start, where)
    alone = b"\r" in start and b"\n" not in start
    return BufferedReader(_PlainText(file, without_byte_order_mark(start), alone), CHUNK_BYTES)


def is_plain(file: BufferedIOBase | IO[bytes]) -> bool:
    """Return whether `plain_text` would leave this text unchanged."""
    start = file.readline(LONGEST_LINE)
    return without_byte_order_mark(start) == start and (b"\r" not in start or b"\n" in start)


def without_byte_order_mark(text: bytes) -> bytes:
    """Return the beginning of a text without its byte order mark."""
    return text.removeprefix(codecs.BOM_UTF8)


def check_encoding(start: bytes, where: str) -> None:
    """Raise `BadData` if the beginning of a text is the byte order mark of UTF-16 or UTF-32."""
    for mark, name in OTHER_ENCODINGS.items():
        if start.startswith(mark):
            raise BadData(f"{where} has the byte order mark of {name}; save this file as UTF-8")


def file_blocks(file: BufferedIOBase | IO[bytes], where: str) -> Iterator[LineBlock]:
    """Yield the lines of a file in blocks; add a line end to the last line if it has none.

    Raises:
        BadData: The file is empty, no UTF-8, or has a too long line.
    """
    line, offset, file = 1, 0, plain_text(file, where)
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
        raise BadData(f"{where} is an empty file (0 bytes); fetch it again")


def whole_lines(file: IO[Any] | IOBase, where: str) -> Iterator[Any]:
    """Yield the lines of a file of text or bytes; `where` names the file in messages.

    Raises:
        BadData: A line is longer than `LONGEST_LINE`, or the last one has no line end.
    """
    number = 0
    while line := file.readline(LONGEST_LINE):
        number += 1
        if len(line) == LONGEST_LINE:
            raise too_long(where, number)
        if line[-1:] not in (b"\n", "\n"):
            raise BadData(
                f"{where}, line {number}: the last line has no line end, so it may be "
                "truncated; fetch the file again, or add a line end if the line is complete, "
                "or remove the line"
            )
        yield line


def too_long(where: str, number: int) -> BadData:
    """Return the error for a line longer than `LONGEST_LINE`."""
    return BadData(
        f"{where}, line {number}: the line has more than {LONGEST_LINE:,} characters; check "
        "whether this is the right file"
    )


def text_blocks(text: bytes, where: str) -> Iterator[LineBlock]:
    """Yield `text`, unchanged, in blocks of whole lines of at least `BLOCK_BYTES`."""
    line, first = 1, 0
    while first < len(text):
        last = text.find(b"\n", first + BLOCK_BYTES) + 1 or len(text)
        block = text[first:last]
        yield LineBlock(block, where, line)
        line, first = line + block.count(b"\n"), last


def check_utf8(text: bytes, where: str, offset: int = 0) -> None:
    """Raise `BadData` unless `text`, which ends with a whole character, is UTF-8.

    Args:
        text: The bytes.
        where: Name of the file.
        offset: Position of the first byte in the file.
    """
    try:
        text.decode()
    except UnicodeDecodeError as error:
        wrong = text[error.start : error.start + 4]
        raise BadData(
            f"{where}: byte {offset + error.start:,} is not UTF-8 ({wrong!r}: {error.reason}); "
            "fetch the file again, or convert it to UTF-8"
        ) from error
