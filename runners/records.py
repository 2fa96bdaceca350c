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
"""Version of the rows and runs that are written now; version 1 can be read as well."""


class Row(TypedDict):
    """One stored measurement: a line in a file of rows."""

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
"""A stored reason has at most this many characters."""
CELL_COLUMNS = COLUMNS[COLUMNS.index("runner") : COLUMNS.index("metric")]
"""The columns that are equal in every row of a run; `Cell.columns` has exactly these."""
_CELL_COLUMNS = frozenset(CELL_COLUMNS)
_STORED = ("identity", "described", "columns", "config", "overrides", "fingerprint")
"""Fields of a `Cell` that are written."""
_SCALAR_TYPES = frozenset({str, int, float, bool, type(None)})
"""Types of values without parts. To look a type up here is ten times faster than
`isinstance(value, Mapping)`."""


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
        """Return the cached value for `what` and `objects`, or compute it with `find` and cache it.

        Args:
            what: name of the value, because several values may be computed from the same objects.
            objects: all objects that decide the value; nothing may change them.
            find: function that computes the value. An error that it raises is not cached.
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

    No row is written for the run, because it is neither finished nor failed.
    """


class Status(StrEnum):
    """How a measurement ended. A row with a status other than `ok` has a reason but no value."""

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
        """Shorten the reason; raise ValueError if the row is invalid or no plain JSON."""
        reason = _cut_middle(self.reason, LONGEST_REASON).encode(errors="backslashreplace").decode()
        object.__setattr__(self, "reason", reason)
        if (self.status is Status.ok) == (self.value is None):
            raise ValueError(
                f"a row with status ok needs a value, and a row with another status has none: "
                f"got {self}"
            )
        if self.status is not Status.ok and not self.reason:
            raise ValueError(f"a row without a value needs a reason: got {self}")
        if self.metric not in METRICS:
            near = get_close_matches(self.metric, METRICS, n=3) or ["none"]
            raise ValueError(
                f"unknown metric {self.metric!r}; near matches: {', '.join(near)}. Define a new "
                "metric in runners/metrics.py; a runner of your package must use an existing metric"
            )
        numbers = (*self.samples, *(() if self.value is None else (self.value,)))
        if not all(math.isfinite(number) for number in numbers):
            raise ValueError(
                f"a stored number must be finite: got {self}; for a loss that is not finite, "
                "store a row with status=Status.diverged and a reason"
            )
        _check_storable("model", self.model)
        _check_storable("step", self.step)
        _check_storable("labels", dict(self.labels))
        metric = METRICS[self.metric]
        if not all(metric.least <= number <= metric.most for number in numbers):
            raise ValueError(
                f"a value of {self.metric} must be from {metric.least:g} to {metric.most:g} "
                f"{metric.unit}: got {self}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """The result of every example of one evaluation, in the order of the split."""

    split: str
    index: Any
    """int64 array [n]: positions in the split, ascending."""
    hit: Any
    """bool array [n]: whether the answer is correct. For examples of many items, a float32 array:
    the fraction of correct items."""
    nll: Any
    """float32 array [n]: negative log-likelihood of each example in nats."""


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
    """The identity together with all options that have their default; names of runs are made of
    it."""
    fingerprint: str = ""
    """Hash of the sources that the run uses."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """The hash of each source file that the run uses, by module, to name the changed files."""
    place: Mapping[str, str] = field(default_factory=dict)
    """Where the user's files are: `folder`, in which the command was typed, and its `config_dir`.
    They are not part of the identity, because users move folders."""
    key: str = field(init=False)
    """16 hexadecimal digits of the SHA-256 of the identity's canonical JSON."""
    checked: InitVar[Memo | None] = None
    """The memo of a sweep whose runs share parts; each part is checked once."""

    def __post_init__(self, checked: Memo | None) -> None:
        """Set `key` and `described`. Raises ValueError if a part of the run is not plain JSON.

        `checked` has parts that earlier runs of the sweep share and that were checked there.
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
                    stored[name] = _check_shared_parts(name, value, checked)
        try:
            _check_storable("all", stored)
        except ValueError:  # check each field alone, so that the message names the invalid field
            for name, value in stored.items():
                _check_storable(name, value)
            raise
        object.__setattr__(self, "key", digest(self.identity))
        object.__setattr__(self, "described", self.described or self.identity)


def row(cell: Cell, measurement: Measurement, created: str) -> Row:
    """Return a measurement as a stored row: a mapping of plain JSON whose keys are `COLUMNS`.

    Args:
        cell: the run that yielded the measurement.
        measurement: the measurement.
        created: UTC time of writing, ISO 8601.
    """
    value = measurement.value
    columns = {
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
        columns["model"] = measurement.model
    return cast(Row, {column: columns[column] for column in COLUMNS})


def baseline_model(name: str) -> str:
    """Return what the model column says in rows of the baseline `name`."""
    return f"{BASELINE}{name}"


def baseline_of(model: str) -> str | None:
    """Return the name of the baseline that a model column states; None if it states a model."""
    return model.removeprefix(BASELINE) if model.startswith(BASELINE) else None


def is_oracle(baseline: str) -> bool:
    """Tell whether a baseline computes its answers from the rule of the task, as an upper bound."""
    return baseline.startswith(("oracle_", "ceiling_"))


def shown_source(source: str) -> str:
    """Return the source of a row as people read it.

    A source of associative recall such as `8 pairs of 64 tokens` becomes `8 pairs, vocabulary 64`.
    """
    return re.sub(r"(\d+ pairs) of (\d+) tokens", r"\1, vocabulary \2", source)


def legible(text: str, at_most: int = LONGEST_REASON) -> str:
    """Return any text as one line that can be stored, printed and put into a table.

    Several spaces or line ends become one space. Of a text longer than `at_most` characters, only
    its beginning and its end remain. Characters that cannot be encoded or printed (a lone
    surrogate, NUL, an escape sequence) are escaped as in Python.
    """
    # The first cut saves time, because a text may have 10⁸ characters; 8 times as many are left,
    # because many of them may be spaces.
    line = " ".join(_cut_middle(text, 8 * at_most).split())
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    return _cut_middle("".join(escaped), at_most)


def _cut_middle(text: str, at_most: int) -> str:
    """Return `text`; if it has more than `at_most` characters, ` … ` replaces its middle."""
    if len(text) <= at_most:
        return text
    half = (at_most - 3) // 2  # " … " has 3 characters
    return f"{text[:half].rstrip()} … {text[-half:].lstrip()}"


def text_of(error: BaseException) -> str:
    """Return the text of any exception, even if its `__str__` fails."""
    try:
        return str(error)
    except BaseException as fault:  # noqa: BLE001 - the __str__ of a user may raise anything
        return f"the error has no readable text, because its __str__ raised {type(fault).__name__}"


def _check_shared_parts(name: str, value: Mapping[str, Any], checked: Memo) -> dict[str, Any]:
    """Check the mappings and lists of a run's field, and return its other entries.

    Many runs share the same mappings and lists, so `checked` remembers which of them passed the
    check. The caller checks the entries that this function returns.

    Args:
        name: name of the field, for messages.
        value: the field.
        checked: the memo of the sweep.

    Raises:
        ValueError: an entry is not plain JSON.
    """
    unchecked = {}
    for key, entry in value.items():
        if type(entry) in _SCALAR_TYPES or not isinstance(entry, Mapping | list):
            unchecked[key] = entry
        else:
            checked.of("storable", (entry,), partial(_check_storable, f"{name}.{key}", entry))
    return unchecked


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
