"""Reads and writes the text files of the store: rows, cells and other objects. Torch-free."""

import gc
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lra.conf import plain_files
from lra.conf.system_errors import is_fault, persistent, way_out
from lra.runners.records import SCHEMA, Row, digest
from lra.runners.storage import schema_1
from lra.runners.storage.atomic import StorageRefused
from lra.runners.storage.row_check import BadRow, ForeignRow, check_cell_columns, read_row


class BadStore(ValueError):
    """A file in the store cannot be used; the message names file and line, and the way out."""


class DamagedFile(BadStore):
    """A file's content is torn or foreign: the cell may run again, and the file is set aside."""


class Unreadable(StorageRefused, BadStore):
    """The system could not read a file; its content may be sound."""


def unreadable(path: Path, error: OSError) -> Unreadable:
    """Return the error that names the path, the reason and the way out."""
    remedy = way_out(error, reading=True)
    return Unreadable(error.errno, f"{path}: cannot be read ({error.strerror}); {remedy}")


def rows_text(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return rows as lines of JSON; each line except the last ends with a space.

    A file that was cut at the end of a line is therefore recognised: its last line ends with a
    space. Any reader of JSON lines can read the file.
    """
    lines = [
        json.dumps(row, allow_nan=False, ensure_ascii=False, separators=(",", ":")) for row in rows
    ]
    return (" \n".join(lines) + "\n").encode()


def pretty(value: Mapping[str, Any]) -> bytes:
    """Return indented JSON, for files that people read."""
    return (json.dumps(value, allow_nan=False, ensure_ascii=False, indent=2) + "\n").encode()


def read_bytes(path: Path, most: int = plain_files.MOST_BYTES) -> bytes:
    """Return the content of a file of at most `most` bytes.

    Raises `BadStore` if it is larger, is not a file, or cannot be read.
    """
    try:
        return plain_files.read_bytes(path, most)
    except plain_files.NoFile as error:
        raise DamagedFile(f"{path}: {error.strerror}") from error
    except OSError as error:
        if is_fault(error):
            raise unreadable(path, error) from error
        if not path.is_file():  # a link to nothing, or to itself
            raise DamagedFile(f"{path}: {plain_files.no_file(path)}") from error
        raise DamagedFile(f"{path}: cannot be read ({error.strerror}); move it away") from error


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a side file. Raises `BadStore`."""
    try:
        found = plain_files.parse_json(read_bytes(path, plain_files.MOST_JSON))
        return plain_files.typed_object(found, {})
    except plain_files.NoJson as error:
        raise DamagedFile(f"{path}: {error}; {_AGAIN}") from error


_AGAIN = "move it and the rows file next to it away, then rerun the sweep"
_CELL = {
    "identity": dict, "described": dict, "columns": dict, "config": dict, "overrides": list,
}  # fmt: skip


def read_cell(folder: Path) -> dict[str, Any]:
    """Return what `cell.json` in a cell's folder holds. Raises `BadStore`."""
    path = folder / "cell.json"
    cell = read_object(path)
    schema = cell.get("schema")
    if type(schema) is int and schema > SCHEMA:
        raise BadStore(
            f"{path}: written with schema {schema}, this version reads up to {SCHEMA}; update lra"
        )
    if type(schema) is not int or schema < 1 or cell.get("cell") != folder.name:
        raise DamagedFile(
            f"{path}: describes run {cell.get('cell')!r} in schema {schema!r}; wanted "
            f"{folder.name!r} in schema 1 to {SCHEMA}; {_AGAIN}"
        )
    if schema == 1 and type(cell.get("identity")) is dict:
        cell["described"] = schema_1.describe_cell(cell["identity"])
    for name, kind in _CELL.items():
        if type(cell.get(name)) is not kind:
            raise DamagedFile(
                f"{path}: {name} is a {type(cell.get(name)).__name__}; wanted a "
                f"{kind.__name__}; {_AGAIN}"
            )
    problem = _description_fault(cell, folder.name)
    if problem:
        raise DamagedFile(f"{path}: {problem}; {_AGAIN}")
    if schema == 1:
        cell["columns"]["model"] = schema_1.model(cell["columns"])
    return cell


def _description_fault(cell: Mapping[str, Any], key: str) -> str | None:
    """Return what is wrong with the `cell.json` of the cell `key`; None if it is sound."""
    if not all(type(word) is str for word in cell["overrides"]):
        return "overrides contain more than text; wanted a list of texts"
    try:
        owner = digest(cell["identity"])
    except ValueError as error:  # 1e999 is valid JSON, but infinite
        return f"the identity cannot be hashed ({error})"
    if owner != key:
        return f"the identity belongs to run {owner}; wanted {key}"
    try:
        check_cell_columns(cell["columns"])
    except BadRow as error:
        return str(error)
    return None


def children(folder: Path) -> list[Path]:
    """Return the paths in a folder, sorted, without hidden ones; [] if there is no such folder.

    Raises:
        BadStore: it is not a folder, or cannot be read.
    """
    return [folder / name for name in _names(folder)]


def _names(folder: Path) -> list[str]:
    try:
        names = sorted(persistent(os.listdir, folder))
    except FileNotFoundError:
        return []
    except NotADirectoryError as error:
        raise DamagedFile(f"{folder}: not a folder; move it away") from error
    except OSError as error:
        raise unreadable(folder, error) from error
    return [name for name in names if not name.startswith(".")]


def cell_folders(root: Path, left_out: list[BadStore] | None = None) -> list[Path]:
    """Return the folders of all cells in the order of their keys.

    Args:
        root: the results folder.
        left_out: a list to which the error of each unreadable folder is added; None: it is raised.
    """
    folders: list[Path] = []
    for group in children(root / "cells"):
        with skipping_damaged(left_out):
            folders += children(group)
    return sorted(folders)


@contextmanager
def skipping_damaged(left_out: list[BadStore] | None) -> Iterator[None]:
    """End the block at a `BadStore`: add that error to `left_out`, or raise it if that is None."""
    try:
        yield
    except BadStore as error:
        if left_out is None:
            raise
        left_out.append(error)


def rows_files(folder: Path) -> list[Path]:
    """Return the rows files of a cell's folder, by name. Raises `BadStore`."""
    names = _names(folder)
    return [folder / n for n in names if n.startswith("rows-") and n.endswith(".jsonl")]


def read_newest_rows(folder: Path) -> tuple[Path, list[Row]] | None:
    """Return the newest rows file in a cell's folder, and its rows; None if there is none.

    The newest is found by the time stored in the rows, because copying changes the time of a file.
    Raises `BadStore` if any rows file in the folder is damaged.
    """
    files = [(path, read_rows_file(path, folder.name)) for path in rows_files(folder)]
    return max(files, key=time_written, default=None)


def time_written(entry: tuple[Path, Sequence[Row]]) -> str:
    """Return when the rows in a pair of file and rows were written: ISO 8601."""
    _, rows = entry
    return rows[0]["created"]


@contextmanager
def without_gc() -> Iterator[None]:
    """Switch the garbage collector off: rows have no cycles, and it would walk over all repeatedly.

    This saves time where many rows are read: a quarter of it for 100,000 rows.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def fingerprint_of(rows: Path) -> str:
    """Return the fingerprint in the name of a rows file."""
    return rows.stem.removeprefix("rows-")


def read_rows_file(path: Path, key: str | None = None) -> list[Row]:
    """Return the rows of one cell, or published rows of many. Every row is checked.

    Args:
        path: the file.
        key: of the cell; None: rows of any cell and fingerprint.

    Raises:
        BadStore: names file and line, the value seen and the value wanted.
    """
    way_out = "fetch the file again" if key is None else "move the file away, then rerun the sweep"
    data = read_bytes(path)
    lines = data.split(b"\n")
    if key is None and data and data[:1] != b"{":
        raise DamagedFile(
            f"{path} begins with {data[:20]!r}; wanted rows as lra report --publish writes them: "
            "JSON, one line each"
        )
    if lines.pop():
        raise DamagedFile(
            f"{path}, line {len(lines) + 1}: torn, the last line is incomplete; {way_out}"
        )
    if not lines or lines[-1].endswith(b" "):
        raise DamagedFile(f"{path}, line {len(lines) + 1}: torn, rows are missing; {way_out}")
    # Either every line but the last ends with a space, or none does.
    has_space = [line.endswith(b" ") for line in lines[:-1]]
    owner = key, fingerprint_of(path)
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = read_row(line)
        except ForeignRow as error:
            raise BadStore(f"{path}, line {number}: {error}") from error
        except BadRow as error:
            raise DamagedFile(f"{path}, line {number}: {error}; {way_out}") from error
        if key is not None and (row["cell"], row["fingerprint"]) != owner:
            raise DamagedFile(
                f"{path}, line {number}: belongs to run {row['cell']}, fingerprint "
                f"{row['fingerprint']}; move the file where it belongs"
            )
        if row["schema"] == 1:
            row["model"] = schema_1.model(row)
        rows.append(row)
    if any(has_space) and not all(has_space):
        number = has_space.index(False) + 2
        raise DamagedFile(
            f"{path}, line {number}: follows a row that says it is the last; {way_out}"
        )
    return rows


def some(names: Sequence[str], at_most: int = 8, between: str = ", ") -> str:
    """Return the first `at_most` names as text for a message, and how many more there are."""
    if not names:
        return "none"
    rest = len(names) - at_most
    return between.join(names[:at_most]) + (f" and {rest} more" if rest > 0 else "")
