"""Checks of the numbers that options take, and types of numbers with their bounds."""

from collections.abc import Callable
from typing import Annotated, NamedTuple, TypeAlias


def check_least(least: int, **numbers: float | None) -> None:
    """Raise ValueError for a number that is there and below `least`."""
    for name, number in numbers.items():
        if number is not None and number < least:
            raise ValueError(f"{name} must be at least {least}: got {number}")


def check_positive(**numbers: float | None) -> None:
    """Raise ValueError for a number that is there and not above 0."""
    for name, number in numbers.items():
        if number is not None and not number > 0:
            raise ValueError(f"{name} must be positive: got {number}")


def check_share(**shares: float | None) -> None:
    """Raise ValueError for a share to drop that is there and outside [0, 1)."""
    for name, share in shares.items():
        if share is not None and not 0 <= share < 1:
            raise ValueError(f"{name} must lie in [0, 1): got {share}")


class Bound(NamedTuple):
    """What the annotation of an option says of its number besides its type."""

    words: str
    """What the number must do, as messages say it."""
    holds: Callable[[float], bool]


Count: TypeAlias = Annotated[int, Bound("be at least 1", lambda number: number >= 1)]
Whole: TypeAlias = Annotated[int, Bound("be at least 0", lambda number: number >= 0)]
Positive: TypeAlias = Annotated[float, Bound("be positive", lambda number: number > 0)]
NonNegative: TypeAlias = Annotated[float, Bound("be 0 or positive", lambda number: number >= 0)]
Fraction: TypeAlias = Annotated[float, Bound("lie between 0 and 1", lambda number: 0 < number < 1)]
Share: TypeAlias = Annotated[float, Bound("lie in [0, 1)", lambda number: 0 <= number < 1)]
"""Of what is dropped."""
