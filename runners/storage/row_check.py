"""What a row must hold, column by column: the one check, of stored and of published rows.

Torch-free. `docs/results.md` says the same in words.
"""

import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

from runners.metrics import METRICS, Metric
from runners.records import CELL_COLUMNS, COLUMNS, SCHEMA, Status

_COLUMNS = frozenset(COLUMNS)
_NUMBERS, _TEXT = frozenset({int, float}), frozenset({str})
_STATUSES = frozenset(status.value for status in Status)
_OK = Status.ok.value
_YEARS = (1970, 2200)
_NAME, _LABEL = 200, 2000
"""Characters of a name and of a label."""


class Fault(NamedTuple):
    """What is wrong with one row."""

    line: int
    """Place of the row, from 1."""
    message: str
    """Column, value seen, value wanted."""
    newer: bool = False
    """The row is sound for all one knows, but of a schema that this version cannot read."""


class _Column(NamedTuple):
    """What one column may hold."""

    types: frozenset[type]
    good: Callable[[Any], bool]
    """Asked of values of these types alone."""
    words: str


def encodable(text: str) -> bool:
    """Tell whether text can be written: halves of surrogate pairs cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_time(text: str) -> bool:
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return False
    return when.tzinfo is not None and _YEARS[0] < when.year < _YEARS[1]


def _text(least: int = 0) -> _Column:
    return _Column(
        types=frozenset({str}),
        good=lambda text: least <= len(text) <= _NAME and text.isprintable(),
        words=f"printable text of {least} to {_NAME} characters",
    )


def _name(letters: str) -> _Column:
    pattern = re.compile(rf"[{letters}]{{1,64}}")
    return _Column(
        types=frozenset({str}),
        good=lambda text: pattern.fullmatch(text) is not None,
        words=f"1 to 64 of the characters {letters}",
    )


def _integer(least: int, most: int, *, empty: bool = False) -> _Column:
    return _Column(
        types=frozenset({int, type(None)} if empty else {int}),
        good=lambda number: number is None or least <= number <= most,
        words=f"an integer from {least} to {most:,}{' or null' if empty else ''}",
    )


_CHECKS = {
    "schema": _integer(1, SCHEMA),
    "cell": _name("0-9a-f"),
    "fingerprint": _name("0-9a-z"),
    "created": _Column(frozenset({str}), _is_time, "a time in ISO 8601 with its zone"),
    "runner": _text(1),
    "mode": _text(1),
    "model": _text(1),
    "task": _text(1),
    "task_version": _integer(0, 10**9),
    "source": _text(),
    "length": _integer(1, 10**12),
    "seed": _integer(-(2**63), 2**63 - 1),
    "causal": _Column(frozenset({bool}), lambda _: True, "true or false"),
    "hardware": _text(),
    "device": _text(),
    "precision": _text(),
    "threads": _integer(0, 10**6),
    "metric": _Column(frozenset({str}), METRICS.__contains__, "a metric that this version knows"),
    "status": _Column(frozenset({str}), _STATUSES.__contains__, f"one of {', '.join(Status)}"),
    "reason": _Column(frozenset({str}), encodable, "text that is Unicode"),
    "step": _integer(0, 2**62, empty=True),
}

_COUNT = re.compile(r"[0-9]{1,15}")
_ABOVE_0 = re.compile(r"[1-9][0-9]{0,14}")
_PLACE = re.compile(r"[0-9]{1,9}|all")
_LABELS = {
    **dict.fromkeys(("examples", "windows", "items", "sequences", "keys", "within"), _COUNT),
    **dict.fromkeys(("row", "left"), _COUNT),
    **dict.fromkeys(
        ("tokens", "trained_tokens", "budget", "k", "context", "context_step", "targets"), _ABOVE_0
    ),
    **dict.fromkeys(("layer", "head", "bucket"), _PLACE),
    "factor": re.compile(r"[1-9][0-9]{0,8}|[0-9]{1,9}\.[0-9]{0,8}[1-9]"),
    "part": re.compile(r"[0-9,]{0,19}[0-9](–[0-9,]{0,19}[0-9])?"),
}
"""Labels that reports read as numbers, and how these are written."""
_TOGETHER = {"factor": ("tokens", "trained_tokens"), "head": ("layer",)}
"""Labels that say nothing without others."""
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
"""Labels without which a value of this metric says nothing."""


def first_fault(rows: Sequence[Any]) -> Fault | None:
    """Return what is wrong with the first row that is not sound, or None where all are.

    Args:
        rows: Values as read from JSON, of any kind.
    """
    for index, row in enumerate(rows):
        if type(row) is not dict or row.keys() != _COLUMNS:
            return min(
                fault for fault in (_shape(index + 1, row), first_fault(rows[:index])) if fault
            )
    if not rows:
        return None
    columns = dict(zip(COLUMNS, zip(*map(itemgetter(*COLUMNS), rows), strict=True), strict=True))
    found = [fault for name in _CHECKS if (fault := _column_fault(name, columns[name]))]
    # What belongs together is compared only where each part has its type.
    end = min((fault.line - 1 for fault in found), default=len(rows))
    for line, row in enumerate(rows[:end], start=1):
        message = _values_fault(row)
        if message:
            return Fault(line, message)
    return min(found, default=None)


def is_sound(names: Sequence[str], rows: Sequence[Any]) -> bool:
    """Tell whether values as read from JSON are rows of some columns, each as it should be.

    Args:
        names: of the columns; with `metric` stand those that are checked together with it.
        rows: The values.
    """
    wanted = {*names}
    if not all(type(row) is dict and row.keys() == wanted for row in rows):
        return False
    if not rows:
        return True
    columns = zip(names, zip(*map(itemgetter(*names), rows), strict=True), strict=True)
    if any(name in _CHECKS and _column_fault(name, values) for name, values in columns):
        return False
    return "metric" not in names or not any(map(_values_fault, rows))


def _values_fault(row: Mapping[str, Any]) -> str | None:
    """Return what is wrong with what belongs together in a row whose parts have their types."""
    return _number_fault(row) or _labels_fault(row)


def columns_fault(columns: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the columns that describe a cell, or None."""
    for name in CELL_COLUMNS:
        fault = _column_fault(name, (columns[name],))
        if fault:
            return fault.message
    return None


def _shape(line: int, row: Any) -> Fault:
    if not isinstance(row, dict):
        return Fault(line, f"not a row of schema 1 to {SCHEMA}: got {_seen(row)}; wanted an object")
    schema = row.get("schema")
    if type(schema) is int and schema > SCHEMA:
        return _newer(line, schema)
    missing, unknown = sorted(_COLUMNS - row.keys()), sorted(row.keys() - _COLUMNS)
    return Fault(
        line,
        f"not a row of schema 1 to {SCHEMA}: lacks {_seen(missing)}, has besides {_seen(unknown)}",
    )


def _newer(line: int, schema: int) -> Fault:
    return Fault(
        line,
        f"written with schema {_seen(schema)}, this version reads up to {SCHEMA}; update lra",
        newer=True,
    )


def _column_fault(name: str, values: Sequence[Any]) -> Fault | None:
    """Check each distinct value once: most columns hold few."""
    wanted = _CHECKS[name]
    if set(map(type, values)) <= wanted.types and all(map(wanted.good, set(values))):
        return None
    for line, value in enumerate(values, start=1):
        if type(value) not in wanted.types or not wanted.good(value):
            if name == "schema" and type(value) is int and value > SCHEMA:
                return _newer(line, value)
            near = get_close_matches(str(value), METRICS, n=3) if name == "metric" else ()
            hint = f"; near matches: {', '.join(near)}" if near else ""
            unknown = "unknown " if name in ("status", "metric") else ""
            return Fault(line, f"{unknown}{name} {_seen(value)}; wanted {wanted.words}{hint}")
    raise AssertionError(f"column {name} passes one by one and not together")


def _number_fault(row: Mapping[str, Any]) -> str | None:
    """Return what is wrong with unit, value, reason and samples."""
    metric, status, value = METRICS[row["metric"]], row["status"], row["value"]
    if (
        row["unit"] == metric.unit
        and status == _OK
        and _is_number(value, metric)
        and (
            row["samples"] == []
            or (type(row["samples"]) is list and _are_numbers(row["samples"], metric))
        )
    ):
        return None
    wanted = f"a number from {metric.least:g} to {metric.most:g} {metric.unit}"
    problem = None
    if row["unit"] != metric.unit:
        problem = f"unit {_seen(row['unit'])}; wanted {metric.unit!r}"
    elif status == Status.ok and not _is_number(value, metric):
        problem = f"value {_seen(value)} under status ok; wanted {wanted}"
    elif status != Status.ok and value is not None:
        problem = f"value {_seen(value)} under status {status}; wanted null"
    elif status != Status.ok and not row["reason"]:
        problem = f"no reason under status {status}; wanted why there is no value"
    elif type(row["samples"]) is not list:
        problem = f"samples {_seen(row['samples'])}; wanted a list of numbers"
    else:
        for sample in row["samples"]:
            if not _is_number(sample, metric):
                problem = f"sample {_seen(sample)}; wanted {wanted}"
    return problem and f"{row['metric']}: {problem}"


def _are_numbers(values: list[Any], metric: Metric) -> bool:
    return (
        {*map(type, values)} <= _NUMBERS
        and min(values) >= metric.least
        and max(values) <= metric.most
    )


def _is_number(value: Any, metric: Metric) -> bool:
    return type(value) in (float, int) and metric.least <= value <= metric.most


def _labels_fault(row: Mapping[str, Any]) -> str | None:
    labels = row["labels"]
    if type(labels) is not dict:
        return f"labels {_seen(labels)}; wanted an object of texts"
    needed = () if row["value"] is None else _NEEDED.get(row["metric"], ())
    check = (
        _labels_problem if {*map(type, labels.values())} <= _TEXT else _labels_problem.__wrapped__
    )
    return check(needed, tuple(labels.items()))


@lru_cache(maxsize=4096)
def _labels_problem(needed: tuple[str, ...], labels: tuple[tuple[str, Any], ...]) -> str | None:
    """Return what is wrong with the labels of a row: most rows of a store have the same few."""
    for name, text in labels:
        if type(text) is not str or len(text) > _LABEL or not text.isprintable():
            return f"label {_seen(name)} {_seen(text)}; wanted printable text up to {_LABEL}"
        if not name.isprintable() or len(name) > _NAME:
            return f"label named {_seen(name)}; wanted printable text up to {_NAME} characters"
        wanted = _LABELS.get(name)
        if wanted is not None and not wanted.fullmatch(text):
            return f"label {name} {_seen(text)}; wanted text like {wanted.pattern}"
        needed = (*needed, *_TOGETHER.get(name, ()))
    found = {name for name, _ in labels}
    lacking = [name for name in needed if name not in found]
    if not lacking:
        return None
    return f"labels {_seen(dict(labels))}; wanted a label {lacking[0]!r}, too"


def _seen(value: Any) -> str:
    """Return a value as a message shows it: one line, bounded, whatever it is."""
    return _SHOWN.repr(value)


_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = _SHOWN.maxlong = 60
