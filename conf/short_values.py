"""Short texts of any values, on one line, for messages."""

from collections.abc import Iterable
from itertools import islice

LONGEST = 60
"""Most characters of a value in a message."""
LONGEST_REASON = 300
"""Most characters of a library's error message."""
MOST = 8
"""Most values that a message lists."""


def short_repr(value: object) -> str:
    """Return the `repr` of `value`, shortened to one line."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits; very deep lists
        return f"a value of type {type(value).__name__}"
    return short(text)


def short(text: object, most: int = LONGEST) -> str:
    """Return a text on one line, cut after `most` characters."""
    line = " ".join(str(text).splitlines())
    return line if len(line) <= most else f"{line[:most]} …"


def short_list(names: Iterable[object], between: str = ", ") -> str:
    """Return the first `MOST` of some names, each shortened, and the number of further names."""
    rest = iter(names)
    first = [short(name) for name in islice(rest, MOST)]
    more = sum(1 for _ in rest)
    return between.join(first) + (f" … and {more:,} more" if more else "")


def reason(error: BaseException) -> str:
    """Return the class and message of the exception that caused `error`, or of `error` itself."""
    cause = error.__cause__ or error
    return f"{type(cause).__name__}: {short(cause, LONGEST_REASON)}"


def number_of(number: int, noun: str) -> str:
    """Return a number with its noun: `1 run`, `2,000 runs`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"
