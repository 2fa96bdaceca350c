"""Reads and writes the text files of the store: rows, runs and other objects. Torch-free."""

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
    """Raised if a file in the store cannot be used; the message names file, line and what to do."""


class DamagedFile(BadStore):
    """Raised if the content of a file is incomplete or of another kind; the run may run again."""


class Unreadable(StorageRefused, BadStore):
    """Raised if the system could not read a file, which may be undamaged."""


def unreadable(path: Path, error: OSError) -> Unreadable:
    """Return the error that names the path, the reason and what to do."""
    remedy = way_out(error, reading=True)
    return Unreadable(error.errno, f"{path}: cannot be read ({error.strerror}); {remedy}")


def rows_text(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return rows as lines of JSON; each line except the last one ends with a space.

    So a file that was cut at the end of a line is recognised by the space in its last line. Any
    program that reads JSON lines can read the file.
    """
    lines = [
        json.dumps(row, allow_nan=False, ensure_ascii=False, separators=(",", ":")) for row in rows
    ]
    return (" \n".join(lines) + "\n").encode()


def pretty(value: Mapping[str, Any]) -> bytes:
    """Return a mapping as indented JSON, for files that people read."""
    return (json.dumps(value, allow_nan=False, ensure_ascii=False, indent=2) + "\n").encode()


def read_bytes(path: Path, most: int = plain_files.MOST_BYTES) -> bytes:
    """Return the content of a file.

    Raises `BadStore` if it has more than `most` bytes, is not a file, or cannot be read.
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
    """Return the JSON object in a file. Raises `BadStore`."""
    try:
        value = plain_files.parse_json(read_bytes(path, plain_files.MOST_JSON))
        return plain_files.typed_object(value, {})
    except plain_files.NoJson as error:
        raise DamagedFile(f"{path}: {error}; {_AGAIN}") from error


_AGAIN = "move it and the rows file next to it away, then rerun the sweep"
_CELL = {
    "identity": dict, "described": dict, "columns": dict, "config": dict, "overrides": list,
}  # fmt: skip


def read_cell(folder: Path) -> dict[str, Any]:
    """Return the content of `cell.json` in the folder of a run. Raises `BadStore`."""
    path = folder / "cell.json"
    cell = read_object(path)
    schema = cell.get("schema")
    if type(schema) is int and schema > SCHEMA:
        raise BadStore(
            f"{path}: this file has schema {schema}, but this version of lra reads schemas up to "
            f"{SCHEMA}; update lra"
        )
    if type(schema) is not int or schema < 1 or cell.get("cell") != folder.name:
        raise DamagedFile(
            f"{path}: this file describes run {cell.get('cell')!r} in schema {schema!r}; wanted "
            f"run {folder.name!r} in a schema from 1 to {SCHEMA}; {_AGAIN}"
        )
    if schema == 1 and type(cell.get("identity")) is dict:
        cell["described"] = schema_1.describe_cell(cell["identity"])
    for name, kind in _CELL.items():
        if type(cell.get(name)) is not kind:
            raise DamagedFile(
                f"{path}: the type of {name} is {type(cell.get(name)).__name__}; wanted "
                f"{kind.__name__}; {_AGAIN}"
            )
    problem = _check_description(cell, folder.name)
    if problem:
        raise DamagedFile(f"{path}: {problem}; {_AGAIN}")
    if schema == 1:
        cell["columns"]["model"] = schema_1.model(cell["columns"])
    return cell


def _check_description(cell: Mapping[str, Any], key: str) -> str | None:
    """Return what is wrong with the `cell.json` of the run `key`; None if it is valid."""
    if not all(type(word) is str for word in cell["overrides"]):
        return "overrides must be a list of texts, but contain other values"
    try:
        owner = digest(cell["identity"])
    except ValueError as error:  # 1e999 is valid JSON, but infinite
        return f"the identity has a value that cannot be hashed ({error})"
    if owner != key:
        return f"the identity belongs to run {owner}; wanted run {key}"
    try:
        check_cell_columns(cell["columns"])
    except BadRow as error:
        return str(error)
    return None


def children(folder: Path) -> list[Path]:
    """Return the sorted paths in a folder without hidden ones; [] if there is no such folder.

    Raises:
        BadStore: the path is not a folder, or cannot be read.
    """
    return [folder / name for name in _list_names(folder)]


def _list_names(folder: Path) -> list[str]:
    try:
        names = sorted(persistent(os.listdir, folder))
    except FileNotFoundError:
        return []
    except NotADirectoryError as error:
        raise DamagedFile(f"{folder}: this path must be a folder; move it away") from error
    except OSError as error:
        raise unreadable(folder, error) from error
    return [name for name in names if not name.startswith(".")]


def cell_folders(root: Path, left_out: list[BadStore] | None = None) -> list[Path]:
    """Return the folders of all runs, ordered by key.

    Args:
        root: the results folder.
        left_out: list to which the error of each unreadable folder is added; None: it is raised.
    """
    folders: list[Path] = []
    for group in children(root / "cells"):
        with skipping_damaged(left_out):
            folders += children(group)
    return sorted(folders)


@contextmanager
def skipping_damaged(left_out: list[BadStore] | None) -> Iterator[None]:
    """Catch a `BadStore` of the `with` block and add it to `left_out`; raise it if that is None."""
    try:
        yield
    except BadStore as error:
        if left_out is None:
            raise
        left_out.append(error)


def rows_files(folder: Path) -> list[Path]:
    """Return the rows files in the folder of a run, ordered by name. Raises `BadStore`."""
    names = _list_names(folder)
    return [folder / n for n in names if n.startswith("rows-") and n.endswith(".jsonl")]


def read_newest_rows(folder: Path) -> tuple[Path, list[Row]] | None:
    """Return the newest rows file in the folder of a run, and its rows; None if there is none.

    The time in the rows decides, because copying changes the time of a file. Raises `BadStore` if
    any rows file in the folder is damaged.
    """
    files = [(path, read_rows_file(path, folder.name)) for path in rows_files(folder)]
    return max(files, key=time_written, default=None)


def time_written(entry: tuple[Path, Sequence[Row]]) -> str:
    """Return when rows were written, in ISO 8601; `entry` is a file and its rows."""
    _, rows = entry
    return rows[0]["created"]


@contextmanager
def without_gc() -> Iterator[None]:
    """Switch the garbage collector off in the `with` block, because rows have no cycles.

    This saves a quarter of the time to read 100,000 rows.
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
    """Return the checked rows of one run, or the checked rows of a published file.

    Args:
        path: the file.
        key: key of the run; None: a published file, with rows of many runs.

    Raises:
        BadStore: a row is invalid; the message names file, line and what is wrong.
    """
    advice = (
        "download the file again" if key is None else "move the file away, then rerun the sweep"
    )
    data = read_bytes(path)
    lines = data.split(b"\n")
    if key is None and data and data[:1] != b"{":
        raise DamagedFile(
            f"{path}: line 1 begins with {data[:20]!r}; wanted rows as `lra report --publish` "
            "writes them: one JSON object in each line"
        )
    if lines.pop():  # what follows the last line end
        raise DamagedFile(f"{path}, line {len(lines) + 1}: the last line is incomplete; {advice}")
    if not lines or lines[-1].endswith(b" "):
        raise DamagedFile(f"{path}, line {len(lines) + 1}: rows are missing at the end; {advice}")
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
            raise DamagedFile(f"{path}, line {number}: {error}; {advice}") from error
        if key is not None and (row["cell"], row["fingerprint"]) != owner:
            raise DamagedFile(
                f"{path}, line {number}: this row belongs to run {row['cell']} with fingerprint "
                f"{row['fingerprint']}; move the file to the folder of that run"
            )
        if row["schema"] == 1:
            row["model"] = schema_1.model(row)
        rows.append(row)
    if any(has_space) and not all(has_space):
        number = has_space.index(False) + 2  # of the line after it, counted from 1
        raise DamagedFile(f"{path}, line {number}: the row before was the last one; {advice}")
    return rows


def some(names: Sequence[str], at_most: int = 8, between: str = ", ") -> str:
    """Return a text with the first `at_most` names and the number of further names."""
    if not names:
        return "none"
    rest = len(names) - at_most
    return between.join(names[:at_most]) + (f" and {rest} more" if rest > 0 else "")
