"""What is stored: cells, and the measurements they yield. Torch-free.

The row schema (version `SCHEMA`, columns `COLUMNS`) is explained on the page "Files and columns
of the results" of the documentation.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import InitVar, dataclass, field
from difflib import get_close_matches
from enum import StrEnum, auto
from functools import partial
from typing import Any, TypedDict, TypeVar, cast

from lra.runners.metrics import METRICS

SCHEMA = 2
"""Of rows and cells that are written; those of 1 are read as well."""


class Row(TypedDict):
    """One stored measurement: a line of a file of rows. The page of the results explains each."""

    schema: int
    cell: str
    fingerprint: str
    created: str
    """UTC, ISO 8601."""
    runner: str
    mode: str
    model: str
    task: str
    task_version: int
    source: str
    length: int
    seed: int
    causal: bool
    hardware: str
    device: str
    precision: str
    threads: int
    metric: str
    value: float | None
    """SI units, bytes, fractions; None unless `status` is `ok`."""
    unit: str
    status: str
    """Of `Status`."""
    reason: str
    samples: list[float]
    step: int | None
    """Of an optimiser, for curves; None for final values."""
    labels: dict[str, str]


COLUMNS = tuple(Row.__annotations__)
"""Of rows, in the order of files."""
DISTURBED = "disturbed"
"""Label of rows that the machine disturbed while they were measured, with what it was. Also what
`runner.retry` calls their cells."""
BASELINE = "baseline/"
"""Begins the model column of a row that holds the score of a baseline, which is no model."""
LONGEST_REASON = 2000
"""Characters of a stored reason."""
CELL_COLUMNS = COLUMNS[COLUMNS.index("runner") : COLUMNS.index("metric")]
"""The columns that are the same in every row of a cell; `Cell.columns` holds exactly these."""
_CELL_COLUMNS = frozenset(CELL_COLUMNS)
_STORED = ("identity", "described", "columns", "config", "overrides", "fingerprint")
"""Fields of a cell that are written."""
_SINGLE = frozenset({str, int, float, bool, type(None)})
"""Types that hold nothing else: to ask whether a value is a mapping takes ten times as long."""


Value = TypeVar("Value")


class Memo:
    """Values by the objects that they follow from: those very objects, not their equals.

    The runs of a sweep share most parts of their configurations; to tell that two parts are one
    takes no time, to tell that they are equal as long as most of what is done with them. Objects
    and values stay alive as long as this does: one for each sweep.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[Hashable, ...], tuple[tuple[object, ...], Any]] = {}

    def of(self, what: Hashable, objects: tuple[object, ...], find: Callable[[], Value]) -> Value:
        """Return what `find` returned when it was asked for the first time; an error is not kept.

        Args:
            what: distinguishes values that follow from the same objects.
            objects: all that the value follows from, besides `what`; nothing may change them.
            find: finds it.
        """
        key = (what, *map(id, objects))
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = (objects, find())
        value: Value = entry[1]
        return value


class Diverged(ArithmeticError):
    """Raised by a runner when training leaves the finite numbers; the cell ends as `diverged`."""


class Interrupted(Exception):
    """Raised by a runner that was asked to stop (SIGTERM) and has saved what it needs to resume.

    No row is written for the cell: it is neither done nor failed.
    """


class Status(StrEnum):
    """How a measurement ended. Every status but `ok` has a reason, and a value of None."""

    ok = auto()
    out_of_memory = auto()
    timeout = auto()
    crashed = auto()
    diverged = auto()
    unsupported = auto()
    skipped = auto()
    """Left out on purpose; the reason says by which limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One number, or the reason why there is none. SI units; bytes; fractions, not percent."""

    metric: str
    """A name in `lra.runners.metrics.METRICS`, which fixes the unit."""
    value: float | None = None
    status: Status = Status.ok
    reason: str = ""
    samples: tuple[float, ...] = ()
    """Every raw sample that `value` summarises, in the order taken."""
    model: str | None = None
    """Overrides the cell's model column: `baseline/majority` and the like, see `baseline_model`."""
    step: int | None = None
    """Optimiser step, for curves; None for final values."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Everything else that tells this row from its neighbours: split, reference, kernel …"""

    def __post_init__(self) -> None:
        """Refuse rows that say nothing or cannot be stored; make any reason storable."""
        reason = _ends(self.reason, LONGEST_REASON).encode(errors="backslashreplace").decode()
        object.__setattr__(self, "reason", reason)
        if (self.status is Status.ok) == (self.value is None):
            raise ValueError(f"a row has a value exactly when its status is ok: got {self}")
        if self.status is not Status.ok and not self.reason:
            raise ValueError(f"a row without a value needs a reason: got {self}")
        if self.metric not in METRICS:
            near = get_close_matches(self.metric, METRICS, n=3) or ["none"]
            raise ValueError(
                f"unknown metric {self.metric!r}; near matches: {', '.join(near)}; "
                "a new metric goes into runners/metrics.py with its unit and meaning, and a runner "
                "of a package takes one that is there"
            )
        numbers = (*self.samples, *(() if self.value is None else (self.value,)))
        if not all(math.isfinite(number) for number in numbers):
            raise ValueError(
                f"a stored number is finite: got {self}; give status=Status.diverged and a reason"
            )
        _check_storable("model", self.model)
        _check_storable("step", self.step)
        _check_storable("labels", dict(self.labels))
        metric = METRICS[self.metric]
        if not all(metric.least <= number <= metric.most for number in numbers):
            raise ValueError(
                f"{self.metric} lies between {metric.least:g} and {metric.most:g} {metric.unit}: "
                f"got {self}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """Per-example results of one evaluation, in split order."""

    split: str
    index: Any
    """int64 array [n]: place in the split, ascending."""
    hit: Any
    """bool array [n]; of examples of many items: float32, the share that is right."""
    nll: Any
    """float32 array [n], nats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One unit of work: one process, whose rows appear together or not at all."""

    identity: Mapping[str, Any]
    """What decides the result and differs from the defaults: plain JSON. Its hash is the key."""
    columns: Mapping[str, Any]
    """The values of the row columns that describe the cell (runner … threads)."""
    config: Mapping[str, Any]
    """The resolved configuration from which a child process rebuilds everything."""
    overrides: tuple[str, ...] = ()
    """The command-line words that lead to this cell, for `lra show`."""
    described: Mapping[str, Any] = field(default_factory=dict)
    """The identity with every option, defaults too: it distinguishes cells in words."""
    fingerprint: str = ""
    """Hash of the sources that the cell uses."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """The hash of each of these sources, by module: what has changed can be named."""
    place: Mapping[str, str] = field(default_factory=dict)
    """Where the user's files lie: `folder`, in which the command was given, and its
    `config_dir`. No part of the identity: folders are moved."""
    key: str = field(init=False)
    """16 hexadecimal digits of the SHA-256 of the identity's canonical JSON."""
    checked: InitVar[Memo | None] = None
    """Of a sweep whose cells share parts, each of which is checked once."""

    def __post_init__(self, checked: Memo | None) -> None:
        """Refuse a cell whose rows could not be written, before it runs for hours."""
        if self.columns.keys() != _CELL_COLUMNS:
            missing = sorted(_CELL_COLUMNS - self.columns.keys())
            unknown = sorted(self.columns.keys() - _CELL_COLUMNS)
            raise ValueError(
                f"columns must be exactly CELL_COLUMNS: missing {missing}, unknown {unknown}"
            )
        stored = {name: getattr(self, name) for name in _STORED}
        if checked is not None:
            for name, value in stored.items():
                if isinstance(value, Mapping):
                    stored[name] = _unshared(name, value, checked)
        try:
            _check_storable("all", stored)
        except ValueError:  # to name the one that fails
            for name, value in stored.items():
                _check_storable(name, value)
            raise
        object.__setattr__(self, "key", digest(self.identity))
        object.__setattr__(self, "described", self.described or self.identity)


def row(cell: Cell, measurement: Measurement, created: str) -> Row:
    """Return one measurement of a cell as it is stored: exactly `COLUMNS`, plain JSON.

    Args:
        cell: where the measurement comes from.
        measurement: the measurement.
        created: UTC time of writing, ISO 8601.
    """
    value = measurement.value
    full = {
        **cell.columns,
        "schema": SCHEMA,
        "cell": cell.key,
        "fingerprint": cell.fingerprint,
        "created": created,
        "metric": measurement.metric,
        "value": None if value is None else float(value),
        "unit": METRICS[measurement.metric].unit,
        "status": measurement.status.value,
        "reason": measurement.reason,
        "samples": [float(sample) for sample in measurement.samples],
        "step": measurement.step,
        "labels": dict(measurement.labels),
    }
    if measurement.model is not None:
        full["model"] = measurement.model
    return cast(Row, {column: full[column] for column in COLUMNS})


def baseline_model(name: str) -> str:
    """Return what stands in the model column of a baseline's rows."""
    return f"{BASELINE}{name}"


def baseline_of(model: str) -> str | None:
    """Return the name of the baseline that a model column stands for; None for a model."""
    return model.removeprefix(BASELINE) if model.startswith(BASELINE) else None


def is_oracle(baseline: str) -> bool:
    """Tell whether a baseline computes answers from the rule of the task: a bound, no rival."""
    return baseline.startswith("oracle_")


def shown_source(source: str) -> str:
    """Return a row's source for people: as stored, the size of a vocabulary reads like a length."""
    return re.sub(r"(\d+ pairs) of (\d+) tokens", r"\1, vocabulary \2", source)


def legible(text: str, at_most: int = LONGEST_REASON) -> str:
    """Return any text as one line that can be stored, printed and set in a table.

    Runs of white space become one space; a long text keeps its two ends; what cannot be encoded or
    seen (a lone surrogate, NUL, an escape sequence) is written as Python would escape it.
    """
    words = " ".join(_ends(text, 8 * at_most).split())  # nobody looks at every one of 10⁸ letters
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in words)
    return _ends("".join(escaped), at_most)


def _ends(text: str, at_most: int) -> str:
    """Return a text, or its two ends where it is longer."""
    if len(text) <= at_most:
        return text
    half = (at_most - 3) // 2
    return f"{text[:half].rstrip()} … {text[-half:].lstrip()}"


def text_of(error: BaseException) -> str:
    """Return the text of any exception, also of one that cannot say it."""
    try:
        return str(error)
    except BaseException as fault:  # noqa: BLE001 - whatever a stranger's __str__ may raise
        return f"its text cannot be had: __str__ raised {type(fault).__name__}"


def _unshared(name: str, value: Mapping[str, Any], checked: Memo) -> dict[str, Any]:
    """Return what of a field other cells do not share; what they do is checked once."""
    unshared = {}
    for part, held in value.items():
        if type(held) in _SINGLE or not isinstance(held, Mapping | list):
            unshared[part] = held
        else:
            checked.of("storable", (held,), partial(_check_storable, f"{name}.{part}", held))
    return unshared


def _check_storable(name: str, value: Any) -> None:
    """Raise ValueError, with the place, for a value that is no plain JSON."""
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        parts: Iterable[tuple[object, Any]] = ()
        if isinstance(value, Mapping):
            parts = value.items()
        elif isinstance(value, list | tuple):
            parts = enumerate(value)
        if not isinstance(error, RecursionError):
            for key, part in parts:
                _check_storable(f"{name}.{key}", part)
        raise ValueError(
            f"{legible(name)}: got {legible(repr(value), 80)}, which cannot be stored ({error}); "
            "wanted plain JSON: finite numbers, text that UTF-8 can encode, true, false, null, "
            "lists and mappings of these"
        ) from error


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def canonical(value: Any) -> str:
    """Return JSON with sorted keys and no spaces: equal values give equal text on any machine."""
    return _CANONICAL.encode(value)


def digest(value: Any, digits: int = 16) -> str:
    """Return the first hexadecimal digits of the SHA-256 of the canonical JSON of `value`."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:digits]
