"""Progress messages of a run: its phase, how far it is, and events. Torch-free.

A run calls `phase`, `so_far` and `report_progress` anywhere, like a logger. Its process receives
the messages by `listen`. Without a listener, and between two messages, a call only reads the clock.
Messages are not stored, and no result depends on them.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TextIO

EVERY_S = 0.1
"""Seconds between two messages of one phase."""
MEASURING_S = 1.0
"""Seconds between two messages while time is measured, because messages take processor time."""
OURS = "lra"
"""Name of the logger; the listener gets its records as events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a run is; never stored."""

    phase: str = ""
    """The current phase, such as `evaluating test`; "" for the steps of a training."""
    unit: str = ""
    """What is counted, for example step, sample or example; "" for nothing."""
    done: int = 0
    total: int = 0
    """How many units there are; 0: unknown."""
    left_s: float | None = None
    """Estimated seconds until `total` is reached, at the speed of this process; None: unknown."""
    loss: float | None = None
    """Loss of the last step, in nats."""
    learning_rate: float | None = None
    speed: float | None = None
    """Recent speed, in `speed_unit` per second."""
    speed_unit: str = ""
    step: "TrainingStep | None" = None
    """More numbers for dashboards; None: this is not a training step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStep:
    """Numbers of a training at its last step; None: unknown."""

    gradient_norm: float | None = None
    """Euclidean norm of all gradients before `optim.clip`."""
    examples_per_s: float | None = None
    tokens_per_s: float | None = None
    """Tokens that the model reads, padding included."""
    step_time_s: float | None = None
    data_wait_share: float | None = None
    """Fraction of the time of all steps so far that was spent waiting for data."""
    process_bytes: int | None = None
    """Resident memory of this process."""
    gpu_bytes: int | None = None
    """Memory of tensors on the GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A single event that a person may want to know, as in the record of a logger."""

    level: int
    """Level as in `logging`."""
    text: str


Listener = Callable[[Progress | Event], None]


class _Current:
    """The listener of this process, and the state of the last message."""

    def __init__(self) -> None:
        self.listener: Listener | None = None
        self.prefixes: tuple[str, ...] = ()
        """Names from enclosing `phase_prefix` blocks."""
        # Monotonic times of the last message, and of the first `so_far` of the current phase.
        self.last_at = self.phase_at = 0.0
        self.phase: tuple[str, ...] = ()  # its name after its prefixes
        self.phase_done = 0  # how many units were done at its first `so_far`
        self.done = 0  # and at its last one


_current = _Current()


def ready(every_s: float = EVERY_S) -> bool:
    """Return whether there is a listener whose last message is at least `every_s` seconds old."""
    return _current.listener is not None and time.monotonic() - _current.last_at >= every_s


def report_progress(message: Progress) -> None:
    """Send a message to the listener now, if there is one."""
    if _current.listener is None:
        return
    _current.last_at = time.monotonic()
    text = ": ".join(part for part in (*_current.prefixes, message.phase) if part)
    _current.listener(replace(message, phase=text))


def phase(name: str) -> None:
    """Report that a phase begins."""
    report_progress(Progress(phase=name))


def so_far(name: str, done: int, total: int, unit: str, every_s: float = EVERY_S) -> None:
    """Report how far a phase is: at its first call, and then every `every_s` seconds.

    Args:
        name: name of the phase.
        done: how many units are complete.
        total: how many units there are; 0: unknown.
        unit: what is counted, in the singular.
        every_s: least seconds between two messages.
    """
    if _current.listener is None:
        return
    now, full_name = time.monotonic(), (*_current.prefixes, name)
    # A phase with fewer units than before has begun again, such as the next validation.
    again, _current.done = done < _current.done, done
    if full_name != _current.phase or again:
        _current.phase, _current.phase_at, _current.phase_done = full_name, now, done
    elif now - _current.last_at < every_s:
        return
    units, spent_s = done - _current.phase_done, now - _current.phase_at  # since the first call
    left_s = spent_s * (total - done) / units if units and total >= done else None
    report_progress(Progress(phase=name, unit=unit, done=done, total=total, left_s=left_s))


@contextmanager
def phase_prefix(name: str) -> Iterator[None]:
    """Put `name` before the phases in the `with` block, as in `reference sdpa: warming up`."""
    outer = _current.prefixes
    _current.prefixes = (*outer, name)
    try:
        yield
    finally:
        _current.prefixes = outer


@contextmanager
def listen(listener: Listener, *, log: TextIO | None) -> Iterator[None]:
    """Pass progress messages and records of the logger in the `with` block to `listener`.

    Args:
        listener: function that is called with each message at once.
        log: file to which records of level INFO and above are also written; None: no file.
    """
    handlers = [_ToListener(listener), *([] if log is None else [_log_handler(log)])]
    logger = logging.getLogger(OURS)
    level = logger.level
    outer, _current.listener = _current.listener, listener
    logger.setLevel(logging.DEBUG)  # the listener gets all records, the log those of INFO on
    for handler in handlers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        _current.listener = outer
        logger.setLevel(level)
        for handler in handlers:
            logger.removeHandler(handler)


class _ToListener(logging.Handler):
    """Passes records of a logger to a listener as events."""

    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self.listener = listener

    def emit(self, record: logging.LogRecord) -> None:
        self.listener(Event(level=record.levelno, text=record.getMessage()))


def _log_handler(log: TextIO) -> logging.Handler:
    handler = logging.StreamHandler(log)
    handler.setLevel(logging.INFO)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    return handler
