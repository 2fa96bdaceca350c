"""Put progress into words: durations, and facts about a running run, the most important first."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from lra.runners.isolation.progress import Progress


class Fact(NamedTuple):
    """A part of a line of progress; a line that is too long loses its highest `rank` first."""

    text: str
    rank: int


def time_words(seconds: float) -> str:
    """Return a measured duration as text: `12.3 s`, `2 min 31 s`, `3 h 05 min`, `2 d 4 h`."""
    if seconds < 59.95:  # so that rounding never prints 60.0 s
        return f"{seconds:.1f} s"
    whole_seconds = round(seconds)
    if whole_seconds < 3600:
        return f"{whole_seconds // 60} min {whole_seconds % 60:02} s"
    return _write_hours(whole_seconds // 60)


def ahead(seconds: float) -> str:
    """Return an estimated duration as rounded text: `24 s`, `3 min`, `2 h 10 min`."""
    if seconds < 90:
        return f"{math.ceil(seconds)} s"
    minutes = math.ceil(seconds / 60)
    return f"{minutes} min" if minutes < 90 else _write_hours(minutes)


def _write_hours(minutes: int) -> str:
    """Return hours and minutes as text; from 48 hours on, days and hours."""
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    hours = minutes // 60
    return f"{hours // 24} d {hours % 24} h"


def cell_facts(message: Progress, *, age_s: float, phase_s: float) -> list[Fact]:
    """Return the facts about a running run: phase, count, loss, learning rate, speed, time left.

    The number of each is its rank: a line that is too long loses the highest first (`join_facts`).

    Args:
        message: The last message that the run sent.
        age_s: Seconds since the message arrived.
        phase_s: Seconds since the phase began.
    """
    total = f"/{message.total:,}" if message.total else ""
    count = f"{message.unit} {message.done:,}{total}" if message.unit else ""
    parts = [Fact(", ".join(part for part in (message.phase, count) if part), 0)]
    if message.loss is not None:
        parts.append(Fact(f"loss {_write_number(message.loss)}", 2))
    if message.learning_rate is not None:
        parts.append(Fact(f"lr {_write_rate(message.learning_rate)}", 4))
    if message.speed is not None:
        parts.append(Fact(f"{_write_number(message.speed, 0)} {message.speed_unit}/s", 3))
    if message.left_s is not None and message.left_s > age_s:
        parts.append(Fact(f"{ahead(message.left_s - age_s)} left", 1))
    elif message.left_s is None and message.phase and phase_s >= 1:
        parts.append(Fact(f"for {ahead(phase_s)}", 1))
    return parts


def join_facts(facts: Sequence[Fact], width: int | None = None) -> str:
    """Return facts as one line; those with the highest rank are omitted until it fits `width`."""
    listed = list(facts)
    while len(listed) > 1 and width is not None and len(_join_texts(listed)) > width:
        listed.remove(max(listed, key=lambda fact: fact.rank))
    return _join_texts(listed)


def _join_texts(facts: Sequence[Fact]) -> str:
    return ", ".join(fact.text for fact in facts)


def _write_number(value: float, digits: int = 3) -> str:
    """Return a number as text with at least three significant digits.

    `digits`: how many decimals a number from 0.01 to 100 has; 0: three significant digits.
    """
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 100:
        return f"{value:,.0f}" if abs(value) < 1e7 else f"{value:.2e}"
    return f"{value:.{digits}f}" if digits and abs(value) >= 0.01 else f"{value:.3g}"


def _write_rate(value: float) -> str:
    """Return a learning rate as text without leading zeros in the exponent: 1.0e-3."""
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    return f"{mantissa}e{int(exponent)}"
