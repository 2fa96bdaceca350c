"""The user's text files: search, hashes, reading by lines, and parts for splits."""

import glob
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from lra.conf.short_values import short, short_repr
from lra.tasks.data.archives import open_packed
from lra.tasks.data.lines import LineBlock, file_blocks
from lra.tasks.data.sources import files_below, texts_identity
from lra.tasks.errors import BadData, NotPrepared

WANTED = (
    "set this option to a text file, a folder of such files, or a pattern in quotes such as "
    "'notes/*.txt'"
)
OTHERS = "use a pattern such as 'notes/*.txt' to exclude other files"
LINES_LOOKED_AT = 10
"""If each of so many lines is an object, the file is JSON Lines."""


def is_one_file(path: Path) -> bool:
    """Return whether `path` names one text, and no folder or pattern."""
    return not path.is_dir() and (path.is_file() or not glob.has_magic(str(path)))


def find_files(option: str, path: Path) -> list[Path]:
    """Return the files that a path names, in the order of their names, without hidden ones.

    `path` is a file, a folder or a pattern; messages name the task's `option`.

    Raises:
        NotPrepared: There is no file.
    """
    if path.is_file():
        return [path]
    if path.is_dir():
        inside = [Path(name) for name in files_below(path)]
        files = [path / name for name in inside if not any(p[0] == "." for p in name.parts)]
    else:
        names = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207  # knows `**` and `~`
        files = [file for file in map(Path, names) if file.is_file()]
    if not files:
        fault = "contains no file" if path.is_dir() else "is missing"
        raise NotPrepared(f"task.{option}={short(str(path))} {fault}; {WANTED}")
    return files


def identities(paths: Mapping[str, Path], files: Mapping[str, Sequence[Path]]) -> dict[str, str]:
    """Return the hash of each split's text.

    Raises:
        BadData: Two splits have a file, or the whole text, in common.
    """
    owners: dict[object, str] = {}
    hashes: dict[str, str] = {}
    for split, split_files in files.items():
        hashes[split] = texts_identity(paths[split], split_files)
        for text in (hashes[split], *{file.resolve(): None for file in split_files}):
            if (other := owners.setdefault(text, split)) != split:
                shared = text if isinstance(text, Path) else "the same text"
                raise BadData(
                    f"task.{other} and task.{split} both name {shared}, and a score on training "
                    f"text does not measure new text; set task.{split} to other files, or remove "
                    f"task.{split} to use the end of task.train for this split"
                )
    return hashes


def read_lines(files: Sequence[Path]) -> Iterator[LineBlock | None]:
    """Yield the lines of `files` in blocks, with line feeds as line ends, and None after each file.

    Raises:
        BadData: A file is empty, no UTF-8, binary, JSON Lines, or a damaged archive.
    """
    for file in files:
        try:
            with open_packed(file) as opened:
                for block in file_blocks(opened, str(file)):
                    if block.line == 1:
                        _check_no_json_lines(block.text, file)
                    if b"\0" in block.text:
                        line = block.line + block.text[: block.text.index(b"\0")].count(b"\n")
                        raise BadData(
                            f"{file}, line {line}: the line contains a byte 0, which no text in "
                            "UTF-8 has; save the file as UTF-8, or remove a file that is no text"
                        )
                    yield block._replace(text=block.text.replace(b"\r\n", b"\n"))
        except BadData as error:
            raise BadData(f"{error}; {OTHERS}" if len(files) > 1 else f"{error}") from None
        yield None


def _check_no_json_lines(text: bytes, file: Path) -> None:
    """Raise `BadData` if the first lines are JSON objects, and the first of them has a text."""
    lines = (line for line in text.splitlines() if line.strip())
    rows = [_json_object(line) for line in islice(lines, LINES_LOOKED_AT)]
    has_ending = not {".jsonl", ".ndjson"}.isdisjoint(file.suffixes)
    if not all(rows) or len(rows) < (1 if has_ending else 2):
        return
    if texts := {name: value for name, value in rows[0].items() if isinstance(value, str)}:
        longest = max(texts, key=lambda name: len(texts[name]))
        raise BadData(
            f"{file} is JSON Lines, so its keys and braces would count as text; save each text of "
            f"a column, such as {short_repr(longest)}, as a file, and set the option to the folder "
            'of these files; the page "Tasks" shows how'
        )


def _json_object(line: bytes) -> dict[str, Any]:
    """Return the JSON object of a line; an empty one if the line is none."""
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def size(files: Sequence[Path]) -> int:
    """Return the number of bytes that `read_lines` yields for these files."""
    return sum(len(block.text) for block in read_lines(files) if block is not None)


def part(whole: Iterator[LineBlock | None], first: int, last: int) -> Iterator[LineBlock | None]:
    """Yield the part of a text from byte `first` to byte `last`.

    If one of them is inside a character, the part begins or ends after this character.
    """
    position = 0
    for block in whole:
        if block is None:
            if first < position <= last:  # this file ends inside the part
                yield None
            continue
        text, start = block.text, position
        position += len(text)
        if start >= last:
            return
        low, high = (_character_start(text, edge - start) for edge in (first, last))
        if low < high:
            yield LineBlock(text[low:high], block.where, block.line + text.count(b"\n", 0, low))


def _character_start(text: bytes, position: int) -> int:
    """Return the first byte from `position` on that begins a character, or the end of the text."""
    position = max(0, min(position, len(text)))
    while position < len(text) and text[position] & 0xC0 == 0x80:  # a later byte of a character
        position += 1
    return position
