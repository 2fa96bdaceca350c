"""The records of the store: runs (`Cell`), and the measurements that they yield. Torch-free.

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
"""Version of newly written rows and runs; version 1 can be read as well."""


class Row(TypedDict):
    """One stored measurement: a line in a file of rows. The page of the results explains each."""

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
    """One of `Status`."""
    reason: str
    samples: list[float]
    step: int | None
    """Optimiser step, for curves; None for final values."""
    labels: dict[str, str]


COLUMNS = tuple(Row.__annotations__)
"""Columns of a row, in the order of files."""
DISTURBED = "disturbed"
"""Label of disturbed rows, with the cause. `runner.retry` uses the same word."""
BASELINE = "baseline/"
"""Prefix of the model column for rows with the score of a baseline, which is not a model."""
LONGEST_REASON = 2000
"""Most characters of a stored reason."""
CELL_COLUMNS = COLUMNS[COLUMNS.index("runner") : COLUMNS.index("metric")]
"""The columns that are equal in every row of a run; `Cell.columns` has exactly these."""
_CELL_COLUMNS = frozenset(CELL_COLUMNS)
_STORED = ("identity", "described", "columns", "config", "overrides", "fingerprint")
"""Fields of a `Cell` that are written."""
_SCALAR_TYPES = frozenset({str, int, float, bool, type(None)})
"""Types of values without parts. This test of a type takes a tenth of `isinstance(_, Mapping)`."""


Value = TypeVar("Value")


class Memo:
    """A cache of values by the identity (`id`) of the objects from which they are computed.

    The runs of a sweep share most parts of their configurations as the same objects. Comparing
    identities is fast; comparing contents takes about as long as computing the value again. The
    memo keeps its objects and values alive, so that an `id` stays valid: use one for each sweep.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[Hashable, ...], tuple[tuple[object, ...], Any]] = {}

    def of(self, what: Hashable, objects: tuple[object, ...], find: Callable[[], Value]) -> Value:
        """Return the value for `what` and `objects`; call `find` only if it is not cached.

        Args:
            what: names the value, because several values may be computed from the same objects.
            objects: all objects that decide the value; nothing may change them.
            find: computes the value. An error that it raises is not cached.
        """
        key = (what, *map(id, objects))
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = (objects, find())
        value: Value = entry[1]
        return value


class Diverged(ArithmeticError):
    """Raised by a runner if a loss is no longer finite; the run ends as `diverged`."""


class Interrupted(Exception):
    """Raised by a runner after SIGTERM, once it has saved what it needs to resume.

    No row is written for the cell: it is neither done nor failed.
    """


class Status(StrEnum):
    """How a measurement ended. Every status except `ok` has a reason and the value None."""

    ok = auto()
    out_of_memory = auto()
    timeout = auto()
    crashed = auto()
    diverged = auto()
    unsupported = auto()
    skipped = auto()
    """Excluded on purpose; the reason names the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One number, or the reason why it is missing. SI units, bytes, fractions (not percent)."""

    metric: str
    """A name in `lra.runners.metrics.METRICS`, which fixes the unit."""
    value: float | None = None
    status: Status = Status.ok
    reason: str = ""
    samples: tuple[float, ...] = ()
    """All raw samples that `value` summarises, in the order of measurement."""
    model: str | None = None
    """Overrides the run's model column, for example `baseline/majority`: see `baseline_model`."""
    step: int | None = None
    """Optimiser step, for curves; None for final values."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Everything else that distinguishes this row from others: split, reference, kernel …"""

    def __post_init__(self) -> None:
        """Refuse a row without a value or a reason, or one that cannot be stored as JSON.

        The reason is shortened, and characters that UTF-8 cannot encode are escaped.
        """
        reason = _ends(self.reason, LONGEST_REASON).encode(errors="backslashreplace").decode()
        object.__setattr__(self, "reason", reason)
        if (self.status is Status.ok) == (self.value is None):
            raise ValueError(f"a row has a value exactly when its status is ok: got {self}")
        if self.status is not Status.ok and not self.reason:
            raise ValueError(f"a row without a value needs a reason: got {self}")
        if self.metric not in METRICS:
            near = get_close_matches(self.metric, METRICS, n=3) or ["none"]
            raise ValueError(
                f"unknown metric {self.metric!r}; near matches: {', '.join(near)}; define new "
                "ones in runners/metrics.py; a runner of another package uses one that exists"
            )
        numbers = (*self.samples, *(() if self.value is None else (self.value,)))
        if not all(math.isfinite(number) for number in numbers):
            raise ValueError(
                f"a stored number must be finite: got {self}; set status=Status.diverged and why"
            )
        _check_storable("model", self.model)
        _check_storable("step", self.step)
        _check_storable("labels", dict(self.labels))
        metric = METRICS[self.metric]
        if not all(metric.least <= number <= metric.most for number in numbers):
            raise ValueError(
                f"{self.metric} must be from {metric.least:g} to {metric.most:g} {metric.unit}: "
                f"got {self}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """Per-example results of one evaluation, in split order."""

    split: str
    index: Any
    """int64 array [n]: positions in the split, ascending."""
    hit: Any
    """bool array [n]; for examples of many items: float32, the fraction of correct items."""
    nll: Any
    """float32 array [n], nats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run: the work of one process, whose rows appear together or not at all."""

    identity: Mapping[str, Any]
    """Options that decide the result and differ from defaults: plain JSON. Its hash is the key."""
    columns: Mapping[str, Any]
    """The values of the row columns that describe the run (runner … threads)."""
    config: Mapping[str, Any]
    """The resolved configuration from which a child process rebuilds everything."""
    overrides: tuple[str, ...] = ()
    """The command-line arguments that select this run, for `lra show`."""
    described: Mapping[str, Any] = field(default_factory=dict)
    """The identity with all options, defaults included: it describes runs in words."""
    fingerprint: str = ""
    """Hash of the sources that the run uses."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """The hash of each of these sources by module, to name the ones that changed."""
    place: Mapping[str, str] = field(default_factory=dict)
    """Where the user's files are: `folder`, in which the command was given, and its `config_dir`.
    Not part of the identity, because folders are moved."""
    key: str = field(init=False)
    """16 hexadecimal digits of the SHA-256 of the identity's canonical JSON."""
    checked: InitVar[Memo | None] = None
    """The memo of a sweep whose runs share parts; each part is checked once."""

    def __post_init__(self, checked: Memo | None) -> None:
        """Set `key` and `described`; refuse a cell whose rows could not be written, before it runs.

        `checked` remembers parts that earlier cells share and that are storable; None: check all.
        """
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
        except ValueError:  # check each field alone, so that the message names the bad one
            for name, value in stored.items():
                _check_storable(name, value)
            raise
        object.__setattr__(self, "key", digest(self.identity))
        object.__setattr__(self, "described", self.described or self.identity)


def row(cell: Cell, measurement: Measurement, created: str) -> Row:
    """Return one measurement of a run in its stored form: exactly `COLUMNS`, plain JSON.

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
    """Return the model column for the rows of a baseline."""
    return f"{BASELINE}{name}"


def baseline_of(model: str) -> str | None:
    """Return the name of the baseline in a model column; None for a model."""
    return model.removeprefix(BASELINE) if model.startswith(BASELINE) else None


def is_oracle(baseline: str) -> bool:
    """Tell whether a baseline computes its answers from the rule of the task, as an upper bound."""
    return baseline.startswith("oracle_")


def shown_source(source: str) -> str:
    """Return the source of a row for people; the size of a vocabulary is named as such."""
    return re.sub(r"(\d+ pairs) of (\d+) tokens", r"\1, vocabulary \2", source)


def legible(text: str, at_most: int = LONGEST_REASON) -> str:
    """Return any text as one line that can be stored, printed and put into a table.

    Several spaces or line ends become one space. A text longer than `at_most` characters keeps its
    two ends. Characters that cannot be encoded or printed (a lone surrogate, NUL, an escape
    sequence) are escaped as in Python.
    """
    words = " ".join(_ends(text, 8 * at_most).split())  # cut first: a text may have 10⁸ letters
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in words)
    return _ends("".join(escaped), at_most)


def _ends(text: str, at_most: int) -> str:
    """Return `text`, or its two ends if it has more than `at_most` characters."""
    if len(text) <= at_most:
        return text
    half = (at_most - 3) // 2
    return f"{text[:half].rstrip()} … {text[-half:].lstrip()}"


def text_of(error: BaseException) -> str:
    """Return the text of any exception, even if its `__str__` fails."""
    try:
        return str(error)
    except BaseException as fault:  # noqa: BLE001 - whatever a stranger's __str__ may raise
        return f"the error has no readable text: __str__ raised {type(fault).__name__}"


def _unshared(name: str, value: Mapping[str, Any], checked: Memo) -> dict[str, Any]:
    """Return the scalar entries of a cell's field; check the others here, once for a sweep.

    Mappings and lists may be objects that many cells share, so `checked` remembers those that
    passed. The caller checks the scalars that this returns.

    Args:
        name: the field's name, for messages.
        value: the field.
        checked: the memo of the sweep.
    """
    unshared = {}
    for key, entry in value.items():
        if type(entry) in _SCALAR_TYPES or not isinstance(entry, Mapping | list):
            unshared[key] = entry
        else:
            checked.of("storable", (entry,), partial(_check_storable, f"{name}.{key}", entry))
    return unshared


def _check_storable(name: str, value: Any) -> None:
    """Raise ValueError if a value is not plain JSON; the message names the part, as in `a.b`."""
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        parts: Iterable[tuple[object, Any]] = ()
        if isinstance(value, Mapping):
            parts = value.items()
        elif isinstance(value, list | tuple):
            parts = enumerate(value)
        if not isinstance(error, RecursionError):  # a part that is not plain JSON raises here
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
