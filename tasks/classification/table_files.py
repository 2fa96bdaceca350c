"""Tables in files, read so that every value is what stands there.

    .csv      fields between commas; a quoted one may hold commas, line ends and doubled quotes
    .tsv      fields between tabs, one row a line; a quote is a character like any other
    .jsonl    an object a line
    .json     an array of objects, or an object a line
    .parquet  columns

Endings may be in upper case, and texts packed (.csv.gz, .xz, .bz2). Nothing is guessed: `01`,
`1e3`, `NA` and `null` are texts in CSV and TSV, and numbers of JSON are
spelled as in the file. Every row has a field for every column, or its line is named: none is merged
or left out. Blank lines at the end of a file are no rows.
"""

import csv
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from lra.conf.short_values import reason, short_list, short_repr
from lra.tasks.data.archives import PACKINGS, open_packed
from lra.tasks.data.lines import plain_text
from lra.tasks.errors import BadData


class TableRecord(NamedTuple):
    """One row."""

    where: str
    """Line or number, for messages."""
    values: tuple[Any, ...]
    """Of the requested columns."""


def table_records(path: Path, columns: Sequence[str]) -> Iterator[TableRecord]:
    """Yield the rows of a table, in order.

    Raises:
        BadData: A column is missing or comes twice, or a row is malformed; names its line.
    """
    return READERS[file_ending(path)](path, columns)


def file_ending(path: Path) -> str:
    """Return what a file's name says of its form: its ending, without that of a packing."""
    name = path.with_suffix("") if path.suffix.lower() in PACKINGS else path
    return name.suffix.lower()


def is_table(path: Path) -> bool:
    """Tell whether a file's name has an ending that is read; parquet is packed by itself."""
    packed = path.suffix.lower() in PACKINGS
    return file_ending(path) in READERS and not (packed and file_ending(path) == PARQUET)


def positions(header: Sequence[str], columns: Sequence[str], where: Path | str) -> list[int]:
    """Return where the columns stand in a header."""
    times = Counter(header)
    if missing := [name for name in columns if not times[name]]:
        raise BadData(
            f"{where}: columns {short_list(header)}, wanted {short_list(missing)}; name your "
            "columns by task.text, task.second_text and task.label, or, for pairs, by "
            "task.source_text and task.target_text"
        )
    if twice := [name for name in columns if times[name] > 1]:
        raise BadData(
            f"{where}: {times[twice[0]]} columns are called {short_repr(twice[0])}: rename all "
            "but one"
        )
    return [list(header).index(name) for name in columns]


def _numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line, with its end, but no blank lines at the end."""
    blank: list[tuple[int, str]] = []
    with open_packed(path) as file:
        for number, line in enumerate(plain_text(file, str(path)), start=1):
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                raise BadData(
                    f"{path}, line {number}: byte {error.start + 1} is not UTF-8; save the "
                    "table as UTF-8"
                ) from None
            if text.strip("\r\n"):
                yield from blank
                blank = []
                yield number, text
            else:
                blank.append((number, text))


def _check_separator(header: str, own: str, columns: Sequence[str], path: Path) -> None:
    """Raise `BadData` where another sign than that of the format separates the wanted columns."""
    for sign, name in SEPARATORS.items():
        with suppress(csv.Error):
            (found,) = csv.reader([header], delimiter=sign)
            if own not in header and len(found) > 1 and {*columns} <= {*found}:
                raise BadData(
                    f"{path}: {name} separate its columns; save it as .csv with commas, or as .tsv "
                    "with tabs"
                )


def _fields(
    rows: Iterator[tuple[int, list[str]]], path: Path, columns: Sequence[str]
) -> Iterator[TableRecord]:
    """Yield what stands below a header, where every row has as many fields as that."""
    _, header = next(rows, (0, []))
    if not header:
        raise BadData(f"{path} is empty: wanted a line of column names and rows below it")
    chosen = positions(header, columns, path)
    for line, row in rows:
        if len(row) != len(header):
            raise BadData(
                f"{path}, line {line}: the number of fields is {len(row)}, and the header has "
                f"{len(header)}; correct or drop the row"
            )
        yield TableRecord(f"line {line}", tuple(row[position] for position in chosen))


def _tsv(path: Path, columns: Sequence[str]) -> Iterator[TableRecord]:
    def rows() -> Iterator[tuple[int, list[str]]]:
        end = None
        for number, line in _numbered_lines(path):
            if end is None:
                _check_separator(line, "\t", columns, path)
                end = "\r\n" if line.endswith("\r\n") else "\n"
            yield number, line.removesuffix(end if line.endswith(end) else "\n").split("\t")

    return _fields(rows(), path, columns)


def _csv(path: Path, columns: Sequence[str]) -> Iterator[TableRecord]:
    def rows() -> Iterator[tuple[int, list[str]]]:
        begun = last = 0

        def lines() -> Iterator[str]:
            nonlocal last
            for number, line in _numbered_lines(path):
                if not last:
                    _check_separator(line, ",", columns, path)
                last = number
                yield line

        reader = csv.reader(lines(), strict=True)
        before = csv.field_size_limit(sys.maxsize)
        try:
            for row in reader:
                yield begun + 1, row
                begun = last
        except csv.Error as error:
            if "new-line" in str(error):
                raise BadData(
                    f"{path}, the row that begins in line {begun + 1}: a carriage return alone "
                    "outside quotes, but other lines end in line feeds: save the table with one "
                    "kind of line end"
                ) from None
            raise BadData(
                f"{path}, the row that begins in line {begun + 1}: {error}; a quote opens or "
                'ends a field and is written "" inside one: close or double it, or '
                "save the table as .tsv, where quotes are ordinary characters"
            ) from None
        finally:
            csv.field_size_limit(before)

    return _fields(rows(), path, columns)


def _parsed(text: str, where: str) -> Any:
    """Return parsed JSON, its objects as lists of pairs and its numbers as they are spelled."""
    try:
        return json.loads(
            text,
            object_pairs_hook=_Pairs,
            parse_int=str,
            parse_float=str,
            parse_constant=_NoNumber,
        )
    except (ValueError, RecursionError) as error:
        raise BadData(f"{where}: this is not JSON: {error}; correct or remove the row") from None


class _NoNumber:
    """NaN or Infinity: no JSON, and what Python writes for an empty cell; no text and no label."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


class _Pairs(list[tuple[str, Any]]):
    """The keys and values of an object, in order; a key may come twice."""


def _json(path: Path, columns: Sequence[str]) -> Iterator[TableRecord]:
    lines = _numbered_lines(path)
    first = next(lines, None)
    if first is None:
        raise BadData(f"{path} is empty: wanted one object per line")
    if file_ending(path) == ".json" and first[1].lstrip().startswith("["):
        whole = _parsed("".join([first[1], *(text for _, text in lines)]), str(path))
        numbered = ((f"row {number}", value) for number, value in enumerate(whole))
    else:
        numbered = (
            (f"line {number}", _parsed(text, f"{path}, line {number}"))
            for number, text in chain([first], lines)
        )
    for where, value in numbered:
        if not isinstance(value, _Pairs):
            raise BadData(f'{path}, {where}: wanted an object such as {{"text": …, "label": …}}')
        if _by_number(value):
            raise _no_row(f"{path}, {where}")
        chosen = positions([key for key, _ in value], columns, f"{path}, {where}")
        row = [value[position][1] for position in chosen]
        if any(map(_by_number, row)):
            raise _no_row(f"{path}, {where}")
        yield TableRecord(where, tuple(map(_json_text, row)))


def _by_number(value: Any) -> bool:
    """Tell whether a value is an object whose keys are numbers of rows."""
    return isinstance(value, _Pairs) and bool(value) and all(key.isdigit() for key, _ in value[:2])


def _no_row(where: str) -> BadData:
    return BadData(
        f"{where}: got an object by row number, as pandas writes a whole table or column, "
        'wanted a row: write it with to_json(orient="records"), with or without lines=True'
    )


def _json_text(value: Any) -> Any:
    """Return a truth value as JSON spells it; the rest as it is."""
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else value


def _parquet(path: Path, columns: Sequence[str]) -> Iterator[TableRecord]:
    import datasets
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(path)
        chosen = positions(table.schema_arrow.names, columns, path)
        features = datasets.Features.from_arrow_schema(table.schema_arrow)
        read = table.read([table.schema_arrow.names[position] for position in chosen])
    except (pyarrow.ArrowException, OSError, ValueError, TypeError) as error:
        raise BadData(f"{path} cannot be read: {reason(error)}") from None
    column_values = [class_names(read.column(name).to_pylist(), features[name]) for name in columns]
    if any(len(values) != table.metadata.num_rows for values in column_values):
        raise BadData(f"{path}: it contains fewer rows than it declares, {table.metadata.num_rows}")
    for number, values in enumerate(zip(*column_values, strict=True)):
        yield TableRecord(f"row {number}", values)


def class_names(values: Sequence[Any], feature: Any) -> list[Any]:
    """Return the values of a column; numbers of classes as their names, where it has them."""
    names = getattr(feature, "names", None)
    if names is None:
        return list(values)
    return [
        names[value] if isinstance(value, int) and 0 <= value < len(names) else value
        for value in values
    ]


SEPARATORS = {";": "semicolons", "\t": "tabs", ",": "commas", "|": "bars"}
"""Semicolons are what spreadsheets write where a comma stands in numbers."""
PARQUET = ".parquet"
READERS: dict[str, Callable[[Path, Sequence[str]], Iterator[TableRecord]]] = {
    ".csv": _csv,
    ".tsv": _tsv,
    ".jsonl": _json,
    ".json": _json,
    PARQUET: _parquet,
}
"""By ending."""


def text_bytes(value: Any, where: str) -> bytes:
    """Return the bytes of a text. BadData for what is no text, and for an empty one."""
    if not isinstance(value, str):
        raise BadData(f"{where}: got {short_repr(value)}, wanted a text; correct or drop the row")
    if not value:
        raise BadData(f"{where} is empty; drop the row or restore its text")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise BadData(f"{where}: {error}; correct or drop the row") from None
