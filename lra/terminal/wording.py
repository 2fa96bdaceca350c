"""Progress in words: durations, and the facts of a running cell in the order of their worth."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from lra.runners.isolation.progress import Progress


class Fact(NamedTuple):
    """A piece of a line; where there is no room, the highest `rank` goes first."""

    text: str
    rank: int


def time_words(seconds: float) -> str:
    """Return a time that has passed: `12.3 s`, `2 min 31 s`, `3 h 05 min`, `2 d 4 h`."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return _long(whole // 60)


def ahead(seconds: float) -> str:
    """Return a time to come, no finer than it can be known: `24 s`, `3 min`, `2 h 10 min`."""
    if seconds < 90:
        return f"{math.ceil(seconds)} s"
    minutes = math.ceil(seconds / 60)
    return f"{minutes} min" if minutes < 90 else _long(minutes)


def _long(minutes: int) -> str:
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    hours = minutes // 60
    return f"{hours // 24} d {hours % 24} h"


def cell_facts(message: Progress, *, age_s: float, phase_s: float) -> list[Fact]:
    """Return what there is to say of a running cell.

    Args:
        message: the last that came.
        age_s: seconds since it came.
        phase_s: seconds since its phase began.
    """
    total = f"/{message.total:,}" if message.total else ""
    counted = f"{message.unit} {message.done:,}{total}" if message.unit else ""
    parts = [Fact(", ".join(part for part in (message.phase, counted) if part), 0)]
    if message.loss is not None:
        parts.append(Fact(f"loss {_significant(message.loss)}", 2))
    if message.learning_rate is not None:
        parts.append(Fact(f"lr {_rate(message.learning_rate)}", 4))
    if message.speed is not None:
        parts.append(Fact(f"{_significant(message.speed, 0)} {message.speed_unit}/s", 3))
    if message.left_s is not None and message.left_s > age_s:
        parts.append(Fact(f"{ahead(message.left_s - age_s)} left", 1))
    elif message.left_s is None and message.phase and phase_s >= 1:
        parts.append(Fact(f"for {ahead(phase_s)}", 1))
    return parts


def join_facts(facts: Sequence[Fact], width: int | None = None) -> str:
    """Return facts as one line, without those of least worth where it would be too wide."""
    kept = list(facts)
    while len(kept) > 1 and width is not None and len(_fact_line(kept)) > width:
        kept.remove(max(kept, key=lambda fact: fact.rank))
    return _fact_line(kept)


def _fact_line(facts: Sequence[Fact]) -> str:
    return ", ".join(fact.text for fact in facts)


def _significant(value: float, digits: int = 3) -> str:
    """Return a number with at least three digits that count."""
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 100:
        return f"{value:,.0f}" if abs(value) < 1e7 else f"{value:.2e}"
    return f"{value:.{digits}f}" if digits and abs(value) >= 0.01 else f"{value:.3g}"


def _rate(value: float) -> str:
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    return f"{mantissa}e{int(exponent)}"
