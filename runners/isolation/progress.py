"""What a running cell says of itself while somebody waits: its phase, how far it is, what happened.

The work calls `phase`, `so_far` and `report_progress` wherever it is, as it would call a logger;
whoever runs it listens. Without a listener, and between two messages, a call costs one look at the
clock. Nothing of it is stored, and nothing of it may change a number. Torch-free.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TextIO

EVERY_S = 0.1
"""Between two messages of one phase."""
MEASURING_S = 1.0
"""The same where time is measured: whoever shows a message takes processor time."""
OURS = "lra"
"""The logger whose events reach the person who waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a cell stands; never stored."""

    phase: str = ""
    """What is done now, as in `evaluating test`; empty for the steps of a training."""
    unit: str = ""
    """What is counted: step, sample, example; empty where nothing is."""
    done: int = 0
    total: int = 0
    """0: nobody knows."""
    left_s: float | None = None
    """Seconds to the end of what is counted, judged by what this process has seen of it."""
    loss: float | None = None
    """Of the last step, nats."""
    learning_rate: float | None = None
    speed: float | None = None
    """Of late, `speed_unit` a second."""
    speed_unit: str = ""
    step: "TrainingStep | None" = None
    """What a dashboard draws of a training, where this is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStep:
    """Numbers of a training as of its last step, each None where nobody knows it."""

    gradient_norm: float | None = None
    """Euclidean, of all gradients as `optim.clip` finds them."""
    examples_per_s: float | None = None
    tokens_per_s: float | None = None
    """Tokens that the model reads, padding included."""
    step_time_s: float | None = None
    data_wait_share: float | None = None
    """Of the time of the steps so far."""
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
    """Who listens, and the last report."""

    def __init__(self) -> None:
        self.listener: Listener | None = None
        self.around: tuple[str, ...] = ()
        self.last_at = self.phase_at = 0.0
        self.phase: tuple[str, ...] = ()
        self.phase_done = 0


_current = _Current()


def ready(every_s: float = EVERY_S) -> bool:
    """Tell whether a message is due: somebody listens, and the last one was `every_s` ago."""
    return _current.listener is not None and time.monotonic() - _current.last_at >= every_s


def report_progress(message: Progress) -> None:
    """Say where the work stands, now."""
    if _current.listener is None:
        return
    _current.last_at = time.monotonic()
    text = ": ".join(part for part in (*_current.around, message.phase) if part)
    _current.listener(replace(message, phase=text))


def phase(name: str) -> None:
    """Say that a phase begins."""
    report_progress(Progress(phase=name))


def so_far(name: str, done: int, total: int, unit: str, every_s: float = EVERY_S) -> None:
    """Say how far a phase is, where a message is due; its first call says that it begins.

    Args:
        name: of the phase.
        done: how many are complete.
        total: how many there are; 0: nobody knows.
        unit: what is counted, in the singular.
        every_s: at least this long between two messages.
    """
    if _current.listener is None:
        return
    now, here = time.monotonic(), (*_current.around, name)
    if here != _current.phase or done < _current.phase_done:
        _current.phase, _current.phase_at, _current.phase_done = here, now, done
    elif now - _current.last_at < every_s:
        return
    seen = done - _current.phase_done
    left = (now - _current.phase_at) * (total - done) / seen if seen and total >= done else None
    report_progress(Progress(phase=name, unit=unit, done=done, total=total, left_s=left))


@contextmanager
def phase_prefix(name: str) -> Iterator[None]:
    """Name what the phases inside belong to, as in `reference sdpa: warming up`."""
    before = _current.around
    _current.around = (*before, name)
    try:
        yield
    finally:
        _current.around = before


@contextmanager
def listen(listener: Listener, *, log: TextIO | None) -> Iterator[None]:
    """Hand what the work says to `listener`, and the records of our logger with it.

    Args:
        listener: is called at once.
        log: where records from INFO on are written as well.
    """
    handlers = [_ToListener(listener), *([] if log is None else [_writing(log)])]
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
    """Hands records on as events."""

    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self.listener = listener

    def emit(self, record: logging.LogRecord) -> None:
        self.listener(Event(level=record.levelno, text=record.getMessage()))


def _writing(log: TextIO) -> logging.Handler:
    handler = logging.StreamHandler(log)
    handler.setLevel(logging.INFO)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    return handler
