"""How values stand in messages: on one line, and short, whatever they are."""

from collections.abc import Iterable
from itertools import islice

LONGEST = 60
"""Characters of a value."""
LONGEST_REASON = 300
"""Characters of what a library says of an error."""
MOST = 8
"""Values of a list of names."""


def short_repr(value: object) -> str:
    """Return a value as Python writes it, shortened."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, lists within lists
        return f"a value of type {type(value).__name__}"
    return short(text)


def short(text: object, most: int = LONGEST) -> str:
    """Return a text on one line, its end left out where it is longer than `most`."""
    line = " ".join(str(text).splitlines())
    return line if len(line) <= most else f"{line[:most]} …"


def short_list(names: Iterable[object], between: str = ", ") -> str:
    """Return the first of some names behind one another, each shortened, and how many follow."""
    rest = iter(names)
    first = [short(name) for name in islice(rest, MOST)]
    more = sum(1 for _ in rest)
    return between.join(first) + (f" … and {more:,} more" if more else "")


def reason(error: BaseException) -> str:
    """Return what a library says of an error, or of what caused it."""
    cause = error.__cause__ or error
    return f"{type(cause).__name__}: {short(cause, LONGEST_REASON)}"


def number_of(number: int, noun: str) -> str:
    """Return a number with its noun: `1 run`, `2,000 runs`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"
