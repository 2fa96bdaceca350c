"""Files that one process wrote and another reads back without trust: one reader for all folders.

What stands in such a file's place may be a pipe, which blocks whoever opens it, a device without an
end, a file of terabytes, or JSON whose nesting or numbers end a reader in a traceback. `read_bytes`
and `read_json` refuse each, with an `OSError` or a `ValueError` that says what is there.
"""

import errno
import json
import math
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from types import GenericAlias
from typing import Any, TypeAlias, get_args, get_origin

from lra.conf.short_values import short_repr
from lra.conf.system_errors import persistent

MOST_BYTES = 1 << 30
"""Of any file that is read whole. Rows of 100,000 cells are a tenth of it."""
MOST_JSON = 1 << 26
"""Of a file that is one object."""
DEEPEST = 60
"""Levels of an object; a configuration has about ten, and printing it is recursive."""
LARGEST = 2**64
"""Beyond any whole number that is written; a larger one may overflow a float or a clock."""
READING = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
APPENDING = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
"""A pipe that nobody has at its other end would block the opening; a file does not care."""
_LONG_NUMBER = re.compile(rb"\d{18}")


Types: TypeAlias = Mapping[str, type | GenericAlias | tuple[type, ...]]
"""Of values that a reader uses, by their keys; `list[str]` and `dict[str, int]` look inside."""


class NoFile(OSError):
    """What stands at a path is no plain file, or a larger one than is ever written there."""


class NoJson(ValueError):
    """What was read is not JSON as it is written here; the message says why."""


def read_bytes(path: str | os.PathLike[str], most: int = MOST_BYTES) -> bytes:
    """Return what is in a plain file of at most so many bytes.

    Raises:
        NoFile: it is none, or larger.
        OSError: it is not there, or cannot be read.
    """
    return read_marked(path, most)[0]


def read_marked(
    path: str | os.PathLike[str], most: int = MOST_BYTES
) -> tuple[bytes, os.stat_result]:
    """Return what `read_bytes` returns, and what the system says of the file that was read."""
    data, found = persistent(_read_marked, path, most)
    if data is None:
        reason = f"larger than {most:,} bytes, too large for a file of this kind; move it away"
        raise NoFile(errno.EINVAL, reason, os.fspath(path))
    return data, found


def _read_marked(path: str | os.PathLike[str], most: int) -> tuple[bytes | None, os.stat_result]:
    descriptor = _open(path)
    try:
        found = os.fstat(descriptor)
        return _whole(descriptor, found.st_size, most), found
    except OSError as error:
        error.filename = os.fspath(path)  # which reading from a descriptor does not tell
        raise
    finally:
        os.close(descriptor)


def read_end(path: str | os.PathLike[str], count: int) -> bytes:
    """Return the last `count` bytes of a plain file, all of a shorter one. Raises as `read_bytes`.

    However large it is, no more is read.
    """
    return persistent(_read_end, path, count)


def _read_end(path: str | os.PathLike[str], count: int) -> bytes:
    descriptor = _open(path)
    try:
        return os.pread(descriptor, count, max(0, os.fstat(descriptor).st_size - count))
    except OSError as error:
        error.filename = os.fspath(path)  # which reading from a descriptor does not tell
        raise
    finally:
        os.close(descriptor)


def open_file(path: str | os.PathLike[str]) -> int:
    """Open a plain file for reading; a pipe is not waited for. Raises `NoFile` or an OSError."""
    return persistent(_open, path)


def _open(path: str | os.PathLike[str]) -> int:
    try:
        descriptor = os.open(path, READING)
    except OSError as error:
        if error.errno not in (errno.ENXIO, errno.ELOOP):  # a socket; a link to itself
            raise
        raise NoFile(errno.EINVAL, no_file(Path(path)), os.fspath(path)) from error
    try:
        plain = stat.S_ISREG(os.fstat(descriptor).st_mode)
    except OSError as error:
        os.close(descriptor)
        error.filename = os.fspath(path)
        raise
    if not plain:
        os.close(descriptor)
        raise NoFile(errno.EINVAL, no_file(Path(path)), os.fspath(path))
    return descriptor


def _whole(descriptor: int, size: int, most: int) -> bytes | None:
    """Return all bytes of an open file, however many it gets meanwhile; None where it has more."""
    if size > most:
        return None
    parts, there = [], 0
    while there <= most and (part := os.read(descriptor, max(size, 4096) + 1)):
        parts.append(part)
        there += len(part)
        if there == size:  # a byte more was asked for and did not come: its end
            break
    return b"".join(parts) if there <= most else None


def no_file(path: Path) -> str:
    """Return what stands where a file is wanted, and the way out."""
    if path.is_dir():
        return "a folder, wanted a file; move it away"
    if path.exists():
        return "a device, a pipe or a socket, wanted a file; move it away"
    return "a link to nothing; remove it" if path.is_symlink() else "no such file"


def read_json(path: str | os.PathLike[str], most: int = MOST_JSON) -> Any:
    """Return the JSON in a file.

    Raises:
        NoJson: see `parse_json`; the message names the file.
        OSError: as `read_bytes`.
    """
    try:
        return parse_json(read_bytes(path, most))
    except NoJson as error:
        raise NoJson(f"{os.fspath(path)}: {error}") from error


def parse_json(data: bytes) -> Any:
    """Return what JSON in UTF-8 says.

    Raises:
        NoJson: it is none, or says what no file of ours can: numbers that are not finite or
            beyond 64 bits, a key twice, halves of letters, deeper nesting than `DEEPEST`.
    """
    long = _LONG_NUMBER.search(data)  # else no need to look at each number
    try:
        found = (_DECODER if long is None else _COUNTING).decode(data.decode())
    except (ValueError, RecursionError) as error:
        raise NoJson(f"torn, not JSON ({error})") from error
    if data.count(b"[") + data.count(b"{") > DEEPEST and _depth(found) > DEEPEST:
        raise NoJson(f"nested deeper than {DEEPEST} levels")
    if b"\\u" in data:
        try:
            json.dumps(found, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise NoJson("contains incomplete characters, which are not valid Unicode") from error
    return found


def _depth(value: Any) -> int:
    """Return how many objects and lists stand inside each other."""
    depth, level = 0, [value]
    while level := [node for node in level if isinstance(node, (dict, list))]:
        depth += 1
        level = [v for node in level for v in (node.values() if isinstance(node, dict) else node)]
    return depth


def refuse_constant(constant: str) -> Any:
    """Refuse NaN and the infinities, which Python reads and JSON has not."""
    raise ValueError(f"{constant} is not a number in JSON")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else refuse_constant(text[:40])


def _whole_number(text: str) -> int:
    number = int(text)  # itself refuses some thousand digits
    if not -LARGEST < number < LARGEST:
        raise ValueError(f"the number {text[:40]} is beyond 64 bits")
    return number


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:40]!r} occurs twice")
    return found


_DECODER = json.JSONDecoder(
    parse_constant=refuse_constant, parse_float=_finite, object_pairs_hook=_once
)
_COUNTING = json.JSONDecoder(
    parse_constant=refuse_constant,
    parse_float=_finite,
    parse_int=_whole_number,
    object_pairs_hook=_once,
)


def typed_object(found: Any, wanted: Types) -> dict[str, Any]:
    """Return an object that has these keys with values of these types; true is no number.

    Raises:
        NoJson: it is no object, or lacks one.
    """
    if type(found) is not dict:
        raise NoJson(f"holds a {type(found).__name__}; wanted an object")
    for name, kind in wanted.items():
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if not any(_holds(found.get(name), each) for each in kinds):
            names = (each.__name__ if type(each) is type else str(each) for each in kinds)
            raise NoJson(
                f"{name}: got {short_repr(found.get(name))}; wanted a {' or '.join(names)}"
            )
    return found


def _holds(value: Any, kind: Any) -> bool:
    """Tell whether a value is of a type, and what is inside it of the types inside that."""
    inner = value.values() if type(value) is dict else value
    of_inner = get_args(kind)[-1:]
    return type(value) is (get_origin(kind) or kind) and all(
        _holds(each, one) for one in of_inner for each in inner
    )
