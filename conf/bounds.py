"""Checks of the numbers that options take, and types of numbers with their bounds."""

from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple, TypeAlias


def check_least(least: int, **numbers: float | None) -> None:
    """Raise ValueError for the first of `numbers` below `least`; None is allowed."""
    for name, number in numbers.items():
        if number is not None and number < least:
            raise ValueError(f"{name} must be at least {least}: got {number}")


def check_positive(**numbers: float | None) -> None:
    """Raise ValueError for the first of `numbers` that is 0 or less, or NaN; None is allowed."""
    for name, number in numbers.items():
        if number is not None and not number > 0:
            raise ValueError(f"{name} must be positive: got {number}")


def check_share(**shares: float | None) -> None:
    """Raise ValueError for the first dropout share outside [0, 1); None is allowed."""
    for name, share in shares.items():
        if share is not None and not 0 <= share < 1:
            raise ValueError(f"{name} must lie in [0, 1): got {share}")


def check_several(unit: str, **lists: Sequence[int] | None) -> None:
    """Raise ValueError for the first list that is empty, or has a number twice or below 1.

    None is allowed. `unit` is what the numbers count, such as "tokens".
    """
    for name, numbers in lists.items():
        if numbers is None:
            continue
        if not numbers or min(numbers) < 1 or len(set(numbers)) < len(numbers):
            raise ValueError(
                f"{name}: got {numbers}; wanted one or more different numbers of {unit}, all at "
                "least 1"
            )


class Bound(NamedTuple):
    """A limit for the number of an option, as part of its type annotation."""

    words: str
    """The limit in words; messages print it after "NAME must"."""
    holds: Callable[[float], bool]
    """Returns whether a number is within the limit."""


Count: TypeAlias = Annotated[int, Bound("be at least 1", lambda number: number >= 1)]
Whole: TypeAlias = Annotated[int, Bound("be at least 0", lambda number: number >= 0)]
Positive: TypeAlias = Annotated[float, Bound("be positive", lambda number: number > 0)]
NonNegative: TypeAlias = Annotated[float, Bound("be 0 or positive", lambda number: number >= 0)]
Fraction: TypeAlias = Annotated[float, Bound("lie in (0, 1)", lambda number: 0 < number < 1)]
Share: TypeAlias = Annotated[float, Bound("lie in [0, 1)", lambda number: 0 <= number < 1)]
"""A share to drop, for example by dropout."""
