"""What is stored: cells, and the measurements they yield. Torch-free.

The row schema (version `SCHEMA`) is documented in `docs/results.md`; `COLUMNS` is its list.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import Any

SCHEMA = 1

COLUMNS = (
    "schema", "cell", "fingerprint", "created", "runner", "mode", "model", "task", "task_version",
    "source", "length", "seed", "causal", "hardware", "device", "precision", "threads", "metric",
    "value", "unit", "status", "reason", "samples", "step", "labels",
)  # fmt: skip


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
    """A name in `runners.metrics.METRICS`, which fixes the unit."""
    value: float | None = None
    status: Status = Status.ok
    reason: str = ""
    samples: tuple[float, ...] = ()
    """Every raw sample behind `value`, in the order taken."""
    model: str | None = None
    """Overrides the cell's model column: `floor/majority` and the like."""
    step: int | None = None
    """Optimiser step, for curves; None for final values."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Everything else that tells this row from its neighbours: split, reference, kernel …"""

    def __post_init__(self) -> None:
        """Refuse rows that say nothing."""
        if (self.status is Status.ok) == (self.value is None):
            raise ValueError(f"a row has a value exactly when its status is ok: got {self}")
        if self.status is not Status.ok and not self.reason:
            raise ValueError(f"a row without a value needs a reason: got {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """Per-example results of one evaluation, in split order."""

    split: str
    index: Any
    """int64 array [n]: place in the split, ascending."""
    hit: Any
    """bool array [n]."""
    nll: Any
    """float32 array [n], nats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a cell stands, for the progress bar; never stored."""

    done: int
    total: int
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One unit of work: it runs in a process of its own and its rows appear together or not at all."""

    identity: Mapping[str, Any]
    """What decides the result: plain JSON. Its hash is the key."""
    columns: Mapping[str, Any]
    """The values of the row columns that describe the cell (runner … threads)."""
    config: Mapping[str, Any]
    """The resolved configuration from which a child process rebuilds everything."""
    overrides: tuple[str, ...] = ()
    """The command-line words that lead to this cell, for `lra show`."""
    fingerprint: str = ""
    """Hash of the sources that the cell uses."""

    @property
    def key(self) -> str:
        """16 hexadecimal digits of the SHA-256 of the identity's canonical JSON."""
        return digest(self.identity)


def canonical(value: Any) -> str:
    """Return JSON with sorted keys and no spaces: equal values give equal text on any machine."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: Any, digits: int = 16) -> str:
    """Return the first hexadecimal digits of the SHA-256 of the canonical JSON of `value`."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:digits]
