"""Readers of tables in files, which return every value unchanged.

    .csv      fields between commas; a quoted field may contain commas, line ends, doubled quotes
    .tsv      fields between tabs, one row on each line; quotes are ordinary characters
    .jsonl    one object on each line
    .json     an array of objects, or one object on each line
    .parquet  columns

Endings may be in upper case, and texts compressed (.csv.gz, .xz, .bz2). Readers convert no value:
`01`, `1e3`, `NA` and `null` are texts in CSV and TSV, and numbers of JSON stay as they are spelled.
If a row has fewer or more fields than the header, a reader raises an error that names its line; it
never skips or joins rows. Blank lines at the end of a file are ignored.
"""

import csv
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

from lra.conf.short_values import reason, short_list, short_repr
from lra.tasks.data.archives import PACKINGS, open_packed
from lra.tasks.data.lines import plain_text
from lra.tasks.errors import BadData


class TableRecord(NamedTuple):
    """One row of a table."""

    where: str
    """Place of the row for messages, for example `line 7` or `row 6`."""
    values: tuple[Any, ...]
    """Values of the requested columns, in their order."""


def table_records(path: Path, columns: Sequence[str]) -> Iterator[TableRecord]:
    """Yield the rows of the table at `path`, with the values of `columns`.

    Raises:
        BadData: A column is missing or occurs twice, or a row is malformed.
    """
    return READERS[file_ending(path)](path, columns)


def file_ending(path: Path) -> str:
    """Return the ending of a file's name in lower case, without .gz, .xz or .bz2."""
    name = path.with_suffix("") if path.suffix.lower() in PACKINGS else path
    return name.suffix.lower()


def is_table(path: Path) -> bool:
    """Return whether a reader exists for the file's ending; parquet must not be compressed."""
    packed = path.suffix.lower() in PACKINGS
    return file_ending(path) in READERS and not (packed and file_ending(path) == PARQUET)


def positions(header: Sequence[str], columns: Sequence[str], where: Path | str) -> list[int]:
    """Return the position of each of `columns` in a header; raise BadData if one is missing."""
    times = Counter(header)
    if missing := [name for name in columns if not times[name]]:
        raise BadData(
            f"{where}: the columns are {short_list(header)}, without {short_list(missing)}; set "
            "task.text, task.second_text and task.label to your columns, or, for pairs of source "
            "and target, task.source_text and task.target_text, or, for task=dna, rename them"
        )
    if repeated := [name for name in columns if times[name] > 1]:
        raise BadData(
            f"{where}: {times[repeated[0]]} columns have the name {short_repr(repeated[0])}; "
            "rename all but one"
        )
    return [list(header).index(name) for name in columns]


def _numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line, with its end; skip blank lines at the end."""
    blank: list[tuple[int, str]] = []
    with open_packed(path) as file:
        for number, line in enumerate(plain_text(file, str(path)), start=1):
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                raise BadData(
                    f"{path}, line {number}: byte {error.start + 1} of this line is not UTF-8; "
                    "save the table as UTF-8"
                ) from None
            if text.strip("\r\n"):
                yield from blank
                blank = []
                yield number, text
            else:
                blank.append((number, text))


def _check_separator(header: str, separator: str, columns: Sequence[str], path: Path) -> None:
    """Raise `BadData` if not `separator`, but another sign separates `columns` in the header."""
    for sign, name in SEPARATORS.items():
        with suppress(csv.Error):
            (names,) = csv.reader([header], delimiter=sign)
            if separator not in header and len(names) > 1 and {*columns} <= {*names}:
                raise BadData(
                    f"{path}: the columns are separated by {name}; save the table as .csv with "
                    "commas, or as .tsv with tabs"
                )


def _fields(
    rows: Iterator[tuple[int, list[str]]], path: Path, columns: Sequence[str]
) -> Iterator[TableRecord]:
    """Yield the values of `columns` below the header; `rows` are (line number, fields)."""
    _, header = next(rows, (0, []))
    if not header:
        raise BadData(f"{path} is empty; a table needs a line of column names, and rows below it")
    chosen = positions(header, columns, path)
    for line, row in rows:
        if len(row) != len(header):
            raise BadData(
                f"{path}, line {line}: this row has {len(row)} fields, but the header has "
                f"{len(header)}; correct or remove the row"
            )
        yield TableRecord(f"line {line}", tuple(row[position] for position in chosen))


def _read_tsv(path: Path, columns: Sequence[str]) -> Iterator[TableRecord]:
    """Yield the rows of a TSV file. All lines have the same end; a last line may lack it."""

    def rows() -> Iterator[tuple[int, list[str]]]:
        """Yield each line's number and fields; the first line shows which line end to remove."""
        end = None
        for number, line in _numbered_lines(path):
            if end is None:
                _check_separator(line, "\t", columns, path)
                end = "\r\n" if line.endswith("\r\n") else "\n"
            yield number, line.removesuffix(end if line.endswith(end) else "\n").split("\t")

    return _fields(rows(), path, columns)


def _read_csv(path: Path, columns: Sequence[str]) -> Iterator[TableRecord]:
    """Yield the rows of a CSV file; a row may have several lines."""

    def rows() -> Iterator[tuple[int, list[str]]]:
        """Yield each row with the number of its first line."""
        # Numbers of the last line of the row before, and of the last line that was read.
        previous_end = last_read = 0

        def lines() -> Iterator[str]:
            """Yield the lines for the CSV reader, and note which one it has read last."""
            nonlocal last_read
            for number, line in _numbered_lines(path):
                if not last_read:
                    _check_separator(line, ",", columns, path)
                last_read = number
                yield line

        reader = csv.reader(lines(), strict=True)
        # Without this limit, which is a global one, a field may be a whole book.
        usual_limit = csv.field_size_limit(sys.maxsize)
        try:
            for row in reader:
                yield previous_end + 1, row
                previous_end = last_read
        except csv.Error as error:
            where = f"{path}, line {previous_end + 1}: the row that begins in this line"
            if "new-line" in str(error):
                raise BadData(
                    f"{where} has a carriage return without a line feed outside quotes, but "
                    "other lines end in line feeds; save the table with one kind of line end"
                ) from None
            raise BadData(
                f"{where} has wrong quotes ({error}); quotes begin and end a field, and a quote "
                'inside a field is written as ""; correct the quotes, or save the table as .tsv, '
                "where quotes are ordinary characters"
            ) from None
        finally:
            csv.field_size_limit(usual_limit)

    return _fields(rows(), path, columns)


def _parse_json(text: str, where: str) -> Any:
    """Return parsed JSON with objects as `_Pairs`, and numbers as strings, spelled as in `text`."""
    try:
        return json.loads(
            text, object_pairs_hook=_Pairs, parse_int=str, parse_float=str, parse_constant=_NoNumber
        )
    except (ValueError, RecursionError) as error:
        raise BadData(f"{where}: the row is not JSON ({error}); correct or remove it") from None


class _NoNumber:
    """NaN or Infinity, which Python writes for a missing value; neither a text nor a label."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


class _Pairs(list[tuple[str, Any]]):
    """The keys and values of an object, in order; a key may occur twice."""


def _read_json(path: Path, columns: Sequence[str]) -> Iterator[TableRecord]:
    """Yield the rows of a JSON file: one object on each line, or an array of objects."""
    lines = _numbered_lines(path)
    first = next(lines, None)
    if first is None:
        raise BadData(f"{path} is empty; a table needs one JSON object on each line")
    _, first_text = first
    if file_ending(path) == ".json" and first_text.lstrip().startswith("["):
        values = _parse_json("".join([first_text, *(text for _, text in lines)]), str(path))
        numbered = ((f"row {number}", value) for number, value in enumerate(values))
    else:
        numbered = (
            (f"line {number}", _parse_json(text, f"{path}, line {number}"))
            for number, text in chain([first], lines)
        )
    for where, value in numbered:
        if not isinstance(value, _Pairs):
            raise BadData(
                f"{path}, {where}: the row is no JSON object; wanted for example "
                '{"text": …, "label": …}'
            )
        if _has_row_numbers(value):
            raise _row_number_error(f"{path}, {where}")
        chosen = positions([key for key, _ in value], columns, f"{path}, {where}")
        row = [item for _, item in map(value.__getitem__, chosen)]
        if any(map(_has_row_numbers, row)):
            raise _row_number_error(f"{path}, {where}")
        yield TableRecord(where, tuple(map(_json_text, row)))


def _has_row_numbers(value: Any) -> bool:
    """Return whether the object `value` has numbers as its first keys, as pandas writes columns."""
    return isinstance(value, _Pairs) and bool(value) and all(key.isdigit() for key, _ in value[:2])


def _row_number_error(where: str) -> BadData:
    """Return the error for a table that pandas wrote by column; see `_has_row_numbers`."""
    return BadData(
        f"{where}: an object has row numbers as keys, as pandas writes a whole table or column; "
        'write the table with to_json(orient="records"), with or without lines=True'
    )


def _json_text(value: Any) -> Any:
    """Return True and False as JSON spells them, and any other value unchanged."""
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else value


def _read_parquet(path: Path, columns: Sequence[str]) -> Iterator[TableRecord]:
    """Yield the rows of a parquet file; class numbers become class names."""
    import datasets
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(path)
        chosen = positions(table.schema_arrow.names, columns, path)
        features = datasets.Features.from_arrow_schema(table.schema_arrow)
        read = table.read([table.schema_arrow.names[position] for position in chosen])
    except (pyarrow.ArrowException, OSError, ValueError, TypeError) as error:
        raise BadData(f"lra cannot read {path}: {reason(error)}") from None
    column_values = [class_names(read.column(name).to_pylist(), features[name]) for name in columns]
    if any(len(values) != table.metadata.num_rows for values in column_values):
        raise BadData(
            f"{path}: the file declares {table.metadata.num_rows} rows, but a column has fewer"
        )
    for number, values in enumerate(zip(*column_values, strict=True)):
        yield TableRecord(f"row {number}", values)


def class_names(values: Sequence[Any], feature: Any) -> list[Any]:
    """Return the values of a column; class numbers as class names if `feature` names classes."""
    names = getattr(feature, "names", None)
    if names is None:
        return list(values)
    return [
        names[value] if isinstance(value, int) and 0 <= value < len(names) else value
        for value in values
    ]


SEPARATORS = {";": "semicolons", "\t": "tabs", ",": "commas", "|": "bars"}
"""Signs that may separate columns, with their names. Some spreadsheets write semicolons."""
PARQUET = ".parquet"
READERS: dict[str, Callable[[Path, Sequence[str]], Iterator[TableRecord]]] = {
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".jsonl": _read_json,
    ".json": _read_json,
    PARQUET: _read_parquet,
}
"""Reader for each file ending."""


def text_bytes(value: Any, where: str) -> bytes:
    """Return the bytes of a text in UTF-8; raise BadData for a value that is none, or empty."""
    if not isinstance(value, str):
        raise BadData(
            f"{where}: got {short_repr(value)}; wanted a text; correct or remove this row"
        )
    if not value:
        raise BadData(f"{where}: the text is empty; restore it, or remove this row")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise BadData(f"{where}: {error}; correct or remove this row") from None


def label_number(label: Any, numbers: Mapping[str, int], where: str) -> int:
    """Return the class of a label, which is compared as text; raise BadData for an unknown one."""
    is_nan = isinstance(label, float) and isnan(label)  # a missing number in parquet
    if is_nan or not isinstance(label, str | int | float) or str(label) not in numbers:
        raise BadData(
            f"{where}: the label is {short_repr(label)}; wanted one of "
            f"{short_list(map(short_repr, numbers))}; add missing labels to task.labels, in quotes "
            "if a label is a number such as '01'"
        )
    return numbers[str(label)]
