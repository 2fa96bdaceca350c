"""Safe reading of files that another process wrote.

At the path of such a file may be a pipe, which blocks a process that opens it, an endless device, a
file of terabytes, or JSON that is nested so deeply that a reader crashes. `read_bytes` and
`read_json` refuse all of these with an `OSError` or a `ValueError`, which says what is at the path.
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
"""Largest size of a file that is read as a whole; the rows of 100,000 runs take a tenth of it."""
MOST_JSON = 1 << 26
"""Largest size in bytes of a file with one JSON object."""
DEEPEST = 60
"""Most levels of nesting; a configuration has about ten. Code that prints it is recursive."""
LARGEST = 2**64
"""Whole numbers in JSON must be smaller; lra writes none so large, and it may overflow a float."""
READING = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
APPENDING = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
"""Flags of `os.open`. O_NONBLOCK has no effect on files; without it, opening a pipe that no other
process has opened would block."""
_LONG_NUMBER = re.compile(rb"\d{18}")


Types: TypeAlias = Mapping[str, type | GenericAlias | tuple[type, ...]]
"""Wanted type of each value by its key; `list[str]` and `dict[str, int]` check the items, too."""


class NoFile(OSError):
    """At a path is no plain file, or one larger than lra ever writes there."""


class NoJson(ValueError):
    """A text is not JSON as lra writes it; the message says why."""


def read_bytes(path: str | os.PathLike[str], most: int = MOST_BYTES) -> bytes:
    """Return the content of the plain file at `path`, of at most `most` bytes.

    Raises:
        NoFile: `path` is no plain file, or a larger one.
        OSError: The file is missing or cannot be read.
    """
    return read_marked(path, most)[0]


def read_marked(
    path: str | os.PathLike[str], most: int = MOST_BYTES
) -> tuple[bytes, os.stat_result]:
    """Return the content of a file as `read_bytes`, and its status (`os.fstat`: owner, times)."""
    data, status = persistent(_read_marked, path, most)
    if data is None:
        reason = f"larger than {most:,} bytes, too large for a file of this kind; move it away"
        raise NoFile(errno.EINVAL, reason, os.fspath(path))
    return data, status


def _read_marked(path: str | os.PathLike[str], most: int) -> tuple[bytes | None, os.stat_result]:
    """Return the content of a file and its status; the content is None above `most` bytes."""
    descriptor = _open(path)
    try:
        status = os.fstat(descriptor)
        return _read_whole(descriptor, status.st_size, most), status
    except OSError as error:
        error.filename = os.fspath(path)  # errors of a descriptor lack the path
        raise
    finally:
        os.close(descriptor)


def read_end(path: str | os.PathLike[str], count: int) -> bytes:
    """Return the last `count` bytes of a plain file of any size, or all of a shorter one."""
    return persistent(_read_end, path, count)


def _read_end(path: str | os.PathLike[str], count: int) -> bytes:
    """Do the work of `read_end`, without repeating after a fault."""
    descriptor = _open(path)
    try:
        return os.pread(descriptor, count, max(0, os.fstat(descriptor).st_size - count))
    except OSError as error:
        error.filename = os.fspath(path)  # errors of a descriptor lack the path
        raise
    finally:
        os.close(descriptor)


def open_file(path: str | os.PathLike[str]) -> int:
    """Open a plain file for reading and return its descriptor; raise `NoFile` for a pipe."""
    return persistent(_open, path)


def _open(path: str | os.PathLike[str]) -> int:
    """Do the work of `open_file`, without repeating after a fault."""
    try:
        descriptor = os.open(path, READING)
    except OSError as error:
        if error.errno not in (errno.ENXIO, errno.ELOOP):
            raise
        # ENXIO: `path` is a socket. ELOOP: it is a link to itself.
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


def _read_whole(descriptor: int, size: int, most: int) -> bytes | None:
    """Return all bytes of an open file of `size` bytes (or more by now); None above `most`."""
    if size > most:
        return None
    parts, bytes_read = [], 0
    while bytes_read <= most and (part := os.read(descriptor, max(size, 4096) + 1)):
        parts.append(part)
        bytes_read += len(part)
        if bytes_read == size:  # `os.read` asked for a byte more: this is the end of the file
            break
    return b"".join(parts) if bytes_read <= most else None


def no_file(path: Path) -> str:
    """Return, for a message, what is at `path` instead of a file, and what the user can do."""
    if path.is_dir():
        return "a folder, wanted a file; move it away"
    if path.exists():
        return "a device, a pipe or a socket, wanted a file; move it away"
    return "a link to nothing; remove it" if path.is_symlink() else "no such file"


def read_json(path: str | os.PathLike[str], most: int = MOST_JSON) -> Any:
    """Return the value that the JSON file `path`, of at most `most` bytes, contains.

    Raises:
        NoJson: `parse_json` refuses the content; the message names the file.
        OSError: `read_bytes` cannot read the file.
    """
    try:
        return parse_json(read_bytes(path, most))
    except NoJson as error:
        raise NoJson(f"{os.fspath(path)}: {error}") from error


def parse_json(data: bytes) -> Any:
    """Return the value of JSON in UTF-8.

    Raises:
        NoJson: `data` is no JSON, or contains what lra never writes: numbers that are not finite
            or beyond 64 bits, a repeated key, halves of characters, nesting below `DEEPEST` levels.
    """
    long_number = _LONG_NUMBER.search(data)  # without one, the faster decoder is safe
    try:
        parsed = (_DECODER if long_number is None else _COUNTING).decode(data.decode())
    except (ValueError, RecursionError) as error:
        raise NoJson(f"torn, not JSON ({error})") from error
    if data.count(b"[") + data.count(b"{") > DEEPEST and _depth(parsed) > DEEPEST:
        raise NoJson(f"nested deeper than {DEEPEST} levels")
    if b"\\u" in data:
        try:
            json.dumps(parsed, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise NoJson("contains incomplete characters, which are not valid Unicode") from error
    return parsed


def _depth(value: Any) -> int:
    """Return the levels of nested objects and lists in `value`; 0 for a number or a string."""
    depth, level = 0, [value]
    while level := [node for node in level if isinstance(node, (dict, list))]:
        depth += 1
        level = [v for node in level for v in (node.values() if isinstance(node, dict) else node)]
    return depth


def refuse_constant(constant: str) -> Any:
    """Raise ValueError for NaN or an infinity, which Python's decoder reads but JSON forbids."""
    raise ValueError(f"{constant} is not a number in JSON")


def _finite(text: str) -> float:
    """Return the number in `text`; raise ValueError if it is too large for a float."""
    number = float(text)
    return number if math.isfinite(number) else refuse_constant(text[:40])


def _whole_number(text: str) -> int:
    """Return the whole number in `text`; raise ValueError if it is beyond 64 bits."""
    number = int(text)  # raises ValueError for thousands of digits
    if not -LARGEST < number < LARGEST:
        raise ValueError(f"the number {text[:40]} is beyond 64 bits")
    return number


def _refuse_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the keys and values of a JSON object; raise ValueError for a repeated key."""
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {repeated[:40]!r} occurs twice")
    return members


_DECODER = json.JSONDecoder(
    parse_constant=refuse_constant, parse_float=_finite, object_pairs_hook=_refuse_repeats
)
_COUNTING = json.JSONDecoder(
    parse_constant=refuse_constant,
    parse_float=_finite,
    parse_int=_whole_number,
    object_pairs_hook=_refuse_repeats,
)


def typed_object(found: Any, wanted: Types) -> dict[str, Any]:
    """Return `found`, a parsed JSON object, if it has all keys of `wanted` with their exact types.

    Raises:
        NoJson: `found` is no object, or one of its values is missing or has another type.
    """
    if type(found) is not dict:
        raise NoJson(f"holds a {type(found).__name__}; wanted a JSON object")
    for name, kind in wanted.items():
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if not any(_has_type(found.get(name), allowed) for allowed in kinds):
            names = (k.__name__ if type(k) is type else str(k) for k in kinds)
            raise NoJson(
                f"{name}: got {short_repr(found.get(name))}; wanted a {' or '.join(names)}"
            )
    return found


def _has_type(value: Any, kind: Any) -> bool:
    """Return whether `value` has exactly the type `kind`, and its items the item type of `kind`."""
    items = value.values() if type(value) is dict else value
    item_kinds = get_args(kind)[-1:]  # one type, of list items or dict values; or none
    return type(value) is (get_origin(kind) or kind) and all(
        _has_type(item, item_kind) for item_kind in item_kinds for item in items
    )
