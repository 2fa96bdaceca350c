"""A user's own text files: found, known by their content, read line by line, cut into parts."""

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

WANTED = "name a text file, a folder of such files, or a pattern in quotes such as 'notes/*.txt'"
OTHERS = "a pattern such as 'notes/*.txt' excludes other files"
LINES_LOOKED_AT = 10
"""Where each of them is an object, a file is JSON Lines."""


def is_one_file(path: Path) -> bool:
    """Tell whether a path names one text; else a folder's files, or those of a pattern."""
    return not path.is_dir() and (path.is_file() or not glob.has_magic(str(path)))


def find_files(option: str, path: Path) -> list[Path]:
    """Return the files that a path names, in the order of their names; hidden ones are left out.

    Args:
        option: Of the task, for messages.
        path: A file, a folder or a pattern.

    Raises:
        NotPrepared: There is none.
    """
    if path.is_file():
        return [path]
    if path.is_dir():
        inside = [Path(name) for name in files_below(path)]
        there = [path / name for name in inside if not any(p[0] == "." for p in name.parts)]
    else:
        names = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207  # knows `**` and `~`
        there = [file for file in map(Path, names) if file.is_file()]
    if not there:
        seen = "contains no file" if path.is_dir() else "is missing"
        raise NotPrepared(f"task.{option}={short(str(path))} {seen}: {WANTED}")
    return there


def identities(paths: Mapping[str, Path], files: Mapping[str, Sequence[Path]]) -> dict[str, str]:
    """Return the hash of each split's text.

    Raises:
        BadData: Two splits have a file, or the whole text, in common.
    """
    owners: dict[object, str] = {}
    found: dict[str, str] = {}
    for split, some in files.items():
        found[split] = texts_identity(paths[split], some)
        for text in (found[split], *{file.resolve(): None for file in some}):
            if (other := owners.setdefault(text, split)) != split:
                what = text if isinstance(text, Path) else "the same text"
                raise BadData(
                    f"task.{other} and task.{split} both name {what}: a score on training text "
                    f"does not measure new text; name other files, or remove task.{split}, so "
                    "that the end of task.train becomes this split"
                )
    return found


def read_lines(files: Sequence[Path]) -> Iterator[LineBlock | None]:
    """Yield the lines of some files, each ended by a line feed, and None behind each file.

    Raises:
        BadData: A file is empty, no UTF-8, binary, JSON Lines, or packed and damaged.
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
                            f"{file}, line {line}: it contains a byte 0, which text in UTF-8 "
                            "does not have: save it as UTF-8, or remove the file if it is not text"
                        )
                    yield block._replace(text=block.text.replace(b"\r\n", b"\n"))
        except BadData as error:
            raise BadData(f"{error}; {OTHERS}" if len(files) > 1 else f"{error}") from None
        yield None


def _check_no_json_lines(text: bytes, file: Path) -> None:
    """Raise `BadData` where each of the first lines is a JSON object, and the first has a text."""
    lines = (line for line in text.splitlines() if line.strip())
    rows = [_json_object(line) for line in islice(lines, LINES_LOOKED_AT)]
    named = not {".jsonl", ".ndjson"}.isdisjoint(file.suffixes)
    if not all(rows) or len(rows) < (1 if named else 2):
        return
    if texts := {name: value for name, value in rows[0].items() if isinstance(value, str)}:
        longest = max(texts, key=lambda name: len(texts[name]))
        raise BadData(
            f"{file} is JSON Lines, whose keys and braces would count as text: save the texts "
            f"of a column, such as {short_repr(longest)}, each as a file of one folder, and name "
            'that folder; the page "Tasks" shows how'
        )


def _json_object(line: bytes) -> dict[str, Any]:
    """Return a line that is a JSON object; an empty one for anything else."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def size(files: Sequence[Path]) -> int:
    """Return the bytes of the text of some files, as `read_lines` gives it."""
    return sum(len(block.text) for block in read_lines(files) if block is not None)


def part(whole: Iterator[LineBlock | None], first: int, last: int) -> Iterator[LineBlock | None]:
    """Yield what lies between two places of a text, in bytes, each moved behind its character."""
    place = 0
    for block in whole:
        if block is None:
            if first < place <= last:
                yield None
            continue
        text, begin = block.text, place
        place += len(text)
        if begin >= last:
            return
        low, high = (_character_start(text, edge - begin) for edge in (first, last))
        if low < high:
            yield LineBlock(text[low:high], block.where, block.line + text.count(b"\n", 0, low))


def _character_start(text: bytes, place: int) -> int:
    """Return the first place from `place` on where a character begins, or the end of the text."""
    place = max(0, min(place, len(text)))
    while place < len(text) and text[place] & 0xC0 == 0x80:
        place += 1
    return place
