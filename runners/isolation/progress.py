"""Progress messages of a running cell: its phase, how far it is, and events. Torch-free.

The work calls `phase`, `so_far` and `report_progress` anywhere, as it would call a logger. The
process that runs it receives the messages by `listen`. Without a listener, and between two
messages, a call only reads the clock. Messages are not stored, and no result depends on them.
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
"""The same while time is measured, because showing a message takes processor time."""
OURS = "lra"
"""The logger whose records are passed to the listener as events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a cell stands; never stored."""

    phase: str = ""
    """The current phase, such as `evaluating test`; "" for the steps of a training."""
    unit: str = ""
    """What is counted: step, sample, example; "" if nothing is."""
    done: int = 0
    total: int = 0
    """0: unknown."""
    left_s: float | None = None
    """Estimated seconds until `total` is reached, from the speed in this process; None: unknown."""
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
    """Euclidean, of all gradients as `optim.clip` finds them."""
    examples_per_s: float | None = None
    tokens_per_s: float | None = None
    """Tokens that the model reads, padding included."""
    step_time_s: float | None = None
    data_wait_share: float | None = None
    """Fraction of the time of the steps so far that was spent waiting for data."""
    process_bytes: int | None = None
    """Resident memory of this process."""
    gpu_bytes: int | None = None
    """Allocated by tensors on the GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened once and that a person may want to know, as in a logger's record."""

    level: int
    """As in `logging`: DEBUG for those who ask for everything."""
    text: str


Listener = Callable[[Progress | Event], None]


class _Current:
    """The listener of this process, and the state of the last message."""

    def __init__(self) -> None:
        self.listener: Listener | None = None
        self.prefixes: tuple[str, ...] = ()
        """Names from enclosing `phase_prefix` blocks."""
        self.last_at = self.phase_at = 0.0
        self.phase: tuple[str, ...] = ()
        self.phase_done = 0


_current = _Current()


def ready(every_s: float = EVERY_S) -> bool:
    """Tell whether there is a listener, and the last message was `every_s` seconds ago."""
    return _current.listener is not None and time.monotonic() - _current.last_at >= every_s


def report_progress(message: Progress) -> None:
    """Send a message to the listener now, if there is one."""
    if _current.listener is None:
        return
    _current.last_at = time.monotonic()
    text = ": ".join(part for part in (*_current.prefixes, message.phase) if part)
    _current.listener(replace(message, phase=text))


def phase(name: str) -> None:
    """Say that a phase begins."""
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
    now, here = time.monotonic(), (*_current.prefixes, name)
    if here != _current.phase or done < _current.phase_done:
        _current.phase, _current.phase_at, _current.phase_done = here, now, done
    elif now - _current.last_at < every_s:
        return
    since = done - _current.phase_done  # units that were done since the first call
    left = (now - _current.phase_at) * (total - done) / since if since and total >= done else None
    report_progress(Progress(phase=name, unit=unit, done=done, total=total, left_s=left))


@contextmanager
def phase_prefix(name: str) -> Iterator[None]:
    """Put `name` before the phases in the block, as in `reference sdpa: warming up`."""
    before = _current.prefixes
    _current.prefixes = (*before, name)
    try:
        yield
    finally:
        _current.prefixes = before


@contextmanager
def listen(listener: Listener, *, log: TextIO | None) -> Iterator[None]:
    """Pass progress messages in the block to `listener`, and our logger's records as events.

    Args:
        listener: is called with each message at once.
        log: a file to which records from INFO on are also written; None: no file.
    """
    handlers = [_ToListener(listener), *([] if log is None else [_log_handler(log)])]
    logger = logging.getLogger(OURS)
    level = logger.level
    before, _current.listener = _current.listener, listener
    logger.setLevel(logging.DEBUG)
    for handler in handlers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        _current.listener = before
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
