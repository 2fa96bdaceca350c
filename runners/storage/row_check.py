"""Reads and checks one row, stored or published. Torch-free.

The page "Files and columns of the results" of the documentation explains the columns.
"""

import re
import reprlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from difflib import get_close_matches
from functools import lru_cache
from operator import itemgetter
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec.structs import asdict

from lra.runners.metrics import METRICS, Metric
from lra.runners.records import CELL_COLUMNS, COLUMNS, SCHEMA, Row, Status

_YEARS = (1970, 2200)
_NAME, _LABEL = 200, 2000
"""Most characters of a name and of a label."""


def _integer(least: int, most: int) -> Any:
    return Annotated[int, msgspec.Meta(ge=least, le=most)]


def _name_type(letters: str) -> Any:
    """Return the type of a name of 1 to 64 of these letters, as in a regular expression."""
    return Annotated[str, msgspec.Meta(pattern=rf"\A[{letters}]{{1,64}}\Z")]


_CHOICES = {
    "metric": tuple(METRICS),
    "unit": tuple({metric.unit: None for metric in METRICS.values()}),
    "status": tuple(status.value for status in Status),
}
_TEXTS = ("runner", "mode", "model", "task", "source", "hardware", "device", "precision")
_TYPES: Mapping[str, Any] = {
    "schema": _integer(1, SCHEMA),
    "cell": _name_type("0-9a-f"),
    "fingerprint": _name_type("0-9a-z"),
    # The first four of these texts are never empty.
    **dict.fromkeys(_TEXTS[:4], Annotated[str, msgspec.Meta(min_length=1, max_length=_NAME)]),
    **dict.fromkeys(_TEXTS[4:], Annotated[str, msgspec.Meta(max_length=_NAME)]),
    **dict.fromkeys(("created", "reason"), str),
    # With a Literal, msgspec gives all rows the same string object.
    **{name: Literal.__getitem__(texts) for name, texts in _CHOICES.items()},
    "task_version": _integer(0, 10**9),
    "length": _integer(1, 10**12),
    "seed": _integer(-(2**63), 2**63 - 1),
    "causal": bool,
    "threads": _integer(0, 10**6),
    "value": float | None,
    "samples": list[float],
    "step": _integer(0, 2**62) | None,
    "labels": dict[str, str],
}


def _struct(name: str, columns: Sequence[str]) -> type[msgspec.Struct]:
    # Without `gc`, the garbage collector ignores the struct, which has no cycles.
    fields = [(column, _TYPES[column]) for column in columns]
    return msgspec.defstruct(name, fields, forbid_unknown_fields=True, gc=False)


_REST = COLUMNS.index("metric")
_Row, _CellColumns = _struct("Row", COLUMNS), _struct("CellColumns", CELL_COLUMNS)
_decode_shared = msgspec.json.Decoder(_struct("Shared", COLUMNS[:_REST])).decode
_decode_rest = msgspec.json.Decoder(_struct("Rest", COLUMNS[_REST:])).decode
_decode = msgspec.json.Decoder().decode
_texts = itemgetter(*_TEXTS)
_PARSE_ERRORS = (msgspec.MsgspecError, ValueError, RecursionError)


class BadRow(ValueError):
    """Raised for an invalid row; the message names the column, its value and what is valid."""


class ForeignRow(BadRow):
    """Raised for a row of a newer schema, or one that pandas saved; it may be undamaged."""


_COUNT = re.compile(r"[0-9]{1,15}")
_ABOVE_0 = re.compile(r"[1-9][0-9]{0,14}")
_PLACE = re.compile(r"[0-9]{1,9}|all")
_LABELS = {
    **dict.fromkeys(("examples", "windows", "items", "sequences", "keys", "within"), _COUNT),
    **dict.fromkeys(("row", "left"), _COUNT),
    **dict.fromkeys(
        (
            "tokens",
            "trained_tokens",
            "budget",
            "k",
            "context",
            "context_step",
            "targets",
            "distance",
            "segment",
        ),
        _ABOVE_0,
    ),
    **dict.fromkeys(("layer", "head", "bucket"), _PLACE),
    "factor": re.compile(r"[1-9][0-9]{0,8}|[0-9]{1,9}\.[0-9]{0,8}[1-9]"),
    "part": re.compile(r"[0-9,]{0,19}[0-9](–[0-9,]{0,19}[0-9])?"),
}
"""Labels that reports read as numbers, and the form of each."""
_TOGETHER = {"factor": ("tokens", "trained_tokens"), "head": ("layer",)}
"""For some labels: other labels that a row with this label must have."""
_NEEDED = {
    **dict.fromkeys(
        ("loss_by_position", "loss_by_document_position", "loss_by_frequency"), ("part",)
    ),
    **dict.fromkeys(("attention_mass", "attention_mass_error"), ("region", "bucket", "layer")),
    **dict.fromkeys(("span_flops", "span_flops_per_token"), ("spans",)),
    **dict.fromkeys(
        (
            "learned_span",
            "attention_distance",
            "attention_entropy",
            "singular_value_share",
            "projection_energy",
        ),
        ("layer", "head"),
    ),
    "attention_within": ("layer", "head", "within"),
    "attention_map": ("layer", "row", "positions"),
    "keys_seen": ("layer", "head", "row", "same"),
    **dict.fromkeys(("kernel_weight", "kernel_deviation"), ("layer", "head", "left")),
    "attention_similarity": ("token", "other", "score"),
    "initial_parameters": ("origin",),
}
"""For some metrics: labels that a row with a value of this metric must have."""


def read_row(line: bytes) -> Row:
    """Return the row in a line of JSON, with exactly `COLUMNS`. Raises `BadRow`.

    The columns before `metric`, two thirds of a line, are equal in most lines of a file, so they
    are parsed and checked once (`_common_columns` caches them). If columns have another order, the
    whole line is parsed.
    """
    begin, metric, end = line.partition(b',"metric":')
    try:
        # The cut is between two columns only if each part, with a brace added, is valid JSON.
        rest = asdict(_decode_rest(b"{" + metric[1:] + end))  # without the comma
        row = {**_common_columns(begin), **rest}
    except _PARSE_ERRORS:
        try:
            anything = _decode(line)
        except _PARSE_ERRORS as error:
            raise BadRow(f"the line is damaged, because it is not JSON ({error})") from error
        return checked_row(anything)
    _check_rest(row)
    return cast(Row, row)


@lru_cache(maxsize=64)
def _common_columns(begin: bytes) -> dict[str, Any]:
    """Return the columns before `metric`, from the beginning of a line. Raises `BadRow`."""
    shared = asdict(_decode_shared(begin + b"}"))
    _check_shared(shared)
    return shared


def checked_row(row: Any) -> Row:
    """Return parsed JSON as a row if it is valid and has exactly `COLUMNS`. Raises `BadRow`."""
    columns = _check_types(row, _Row)
    _check_shared(columns)
    _check_rest(columns)
    return cast(Row, columns)


def check_cell_columns(columns: Any) -> None:
    """Raise `BadRow` unless `columns` is a mapping of exactly `CELL_COLUMNS` with valid values."""
    _check_texts(_check_types(columns, _CellColumns))


def _check_types(columns: Any, kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return columns if they have the names and types of the struct `kind`.

    Raises:
        BadRow: they have not; the message says what differs.
        ForeignRow: a newer lra wrote the row, or pandas saved it; the message says what to do.
    """
    try:
        return asdict(msgspec.convert(columns, kind))
    except msgspec.ValidationError as error:
        refusal = error
    if not isinstance(columns, dict):
        raise BadRow(f"a row must be a JSON object: got {_shorten(columns)}")
    schema = columns.get("schema")
    if type(schema) is int and schema > SCHEMA:
        raise ForeignRow(
            f"this row has schema {_shorten(schema)}, but this version of lra reads schemas up to "
            f"{SCHEMA}; update lra"
        )
    expected = {*kind.__struct_fields__}
    if columns.keys() != expected:
        missing, unknown = sorted(expected - columns.keys()), sorted(columns.keys() - expected)
        if not missing and {"family", "options"} <= {*unknown}:
            raise ForeignRow(
                "this file was saved by pandas, with the columns that lra.rows adds: read it "
                "with pandas.read_json(path, lines=True, precise_float=True), and pass the "
                "frame to lra.table or lra.figure"
            )
        raise BadRow(
            f"a row has wrong columns: {_shorten(missing)} are missing, and {_shorten(unknown)} "
            "are unknown"
        )
    # A message of msgspec is like "Expected `int`, got `str` - at `$.seed`".
    problem, _, place = str(refusal).partition(" - at `$.")
    name, *_ = re.split(r"\W", place)
    value = columns[name]
    wanted, _, _ = problem.removeprefix("Expected ").partition(", got")
    if name in _CHOICES:
        near = get_close_matches(str(value), _CHOICES[name], n=3) or [*_CHOICES[name]]
        raise BadRow(
            f"unknown {name} {_shorten(value)}; wanted a {name} of this version, such as "
            f"{', '.join(near[:8])}"
        )
    raise BadRow(f"{name}: got {_shorten(value)}; wanted {wanted}")


def _check_shared(row: Mapping[str, Any]) -> None:
    """Raise `BadRow` if columns before `metric` have invalid values; types are already checked."""
    _check_texts(row)
    if not _is_time(row["created"]):
        raise BadRow(
            f"created: got {_shorten(row['created'])}; wanted a time in ISO 8601 with a time zone"
        )


def _check_rest(row: Mapping[str, Any]) -> None:
    """Raise `BadRow` if columns from `metric` on have invalid values; types are already checked."""
    _check_numbers(row)
    needed = () if row["value"] is None else _NEEDED.get(row["metric"], ())
    problem = _find_label_problem(needed, tuple(row["labels"].items()))
    if problem:
        raise BadRow(problem)


def _check_texts(columns: Mapping[str, Any]) -> None:
    if not "".join(_texts(columns)).isprintable():
        name = next(name for name in _TEXTS if not columns[name].isprintable())
        raise BadRow(f"{name}: got {_shorten(columns[name])}; wanted printable text")


def _is_time(text: str) -> bool:
    with suppress(ValueError):
        time, (first, last) = datetime.fromisoformat(text), _YEARS
        return time.tzinfo is not None and first < time.year < last
    return False


def _range_text(metric: Metric) -> str:
    return f"a number from {metric.least:g} to {metric.most:g} {metric.unit}"


def _check_numbers(row: Mapping[str, Any]) -> None:
    """Raise `BadRow` if metric, unit, status, value, reason and samples contradict each other."""
    name, status, value, samples = row["metric"], row["status"], row["value"], row["samples"]
    metric = METRICS[name]
    if row["unit"] != metric.unit:
        raise BadRow(f"{name}: got the unit {_shorten(row['unit'])}; wanted {metric.unit!r}")
    if status == Status.ok:
        if value is None or not metric.least <= value <= metric.most:
            raise BadRow(
                f"{name}: got the value {_shorten(value)} with status ok; wanted "
                f"{_range_text(metric)}"
            )
    elif value is not None:
        raise BadRow(f"{name}: got the value {_shorten(value)} with status {status}; wanted null")
    elif not row["reason"]:
        raise BadRow(f"{name}: a row with status {status} needs a reason, but it is empty")
    if samples and not (metric.least <= min(samples) and max(samples) <= metric.most):
        sample = next(number for number in samples if not metric.least <= number <= metric.most)
        raise BadRow(f"{name}: got the sample {_shorten(sample)}; wanted {_range_text(metric)}")


@lru_cache(maxsize=4096)
def _find_label_problem(needed: tuple[str, ...], labels: tuple[tuple[str, str], ...]) -> str | None:
    """Return what is wrong with the labels of a row; None if they are valid.

    Results are cached, because most rows of a store have the same few labels.

    Args:
        needed: names of labels that the metric of the row needs.
        labels: pairs of name and text.
    """
    for name, text in labels:
        if len(text) > _LABEL or not text.isprintable():
            return (
                f"label {_shorten(name)}: got {_shorten(text)}; wanted printable text of at most "
                f"{_LABEL} characters"
            )
        if len(name) > _NAME or not name.isprintable():
            return (
                f"name of a label: got {_shorten(name)}; wanted printable text of at most {_NAME} "
                "characters"
            )
        pattern = _LABELS.get(name)
        if pattern is not None and not pattern.fullmatch(text):
            return (
                f"label {name}: got {_shorten(text)}; wanted a text of the form {pattern.pattern}"
            )
        needed = (*needed, *_TOGETHER.get(name, ()))
    for name in needed:
        if name not in dict(labels):
            return f"labels: got {_shorten(dict(labels))}; wanted a label {name!r}, too"
    return None


def _shorten(value: Any) -> str:
    """Return any value as one short line for a message."""
    return _SHORT_REPR.repr(value)


_SHORT_REPR = reprlib.Repr()
_SHORT_REPR.maxstring = _SHORT_REPR.maxother = _SHORT_REPR.maxlong = 60
