"""The parts of a generated picture, and the label that follows from them.

A snake is a chain of dashes. A dash is on a line from its pivot, and the pivot of the next dash is
one dash and two margins further along this line. Positions are whole pixels, so code can follow
any snake dash by dash.
"""

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8

from lra.tasks.classification.pathfinder.styles import Style


class Dash(NamedTuple):
    """The position of one dash; pixels are row and column."""

    pivot: tuple[int, int]
    """The dash begins one margin away from this pixel."""
    tail: tuple[int, int]
    head: tuple[int, int]
    turn: float
    """Direction in radians, 0 to the right, then downwards."""


class TracedPicture(NamedTuple):
    """One example, and what proves its label."""

    pixels: UInt8[np.ndarray, "s s"]
    label: int
    snakes: tuple[tuple[Dash, ...], ...]
    """The dashes of each snake: first the two long snakes, then the short ones."""
    marks: tuple[tuple[int, int], tuple[int, int]]
    """The pixels of the discs: the beginning of a long snake, and the end of one."""
    style: Style
    margin: int


def is_one_snake(picture: TracedPicture) -> bool:
    """Return whether the same snake begins at one mark and ends at the other (label 1).

    Raises:
        ValueError: A dash of a snake does not follow the one before it, or no snake begins at the
            first mark.
    """
    begin, finish = picture.marks
    for snake in picture.snakes:
        for dash, after in pairwise(snake):
            if not follows(picture, dash, after):
                raise ValueError(
                    f"the dash at {after.head} does not follow the dash at {dash.head}"
                )
    marked_snakes = [snake for snake in picture.snakes if snake[0].tail == begin]
    if not marked_snakes:
        raise ValueError(f"no snake begins at the mark {begin}")
    return any(snake[-1].head == finish for snake in marked_snakes)


def straightest(picture: TracedPicture) -> bool:
    """Return whether a path from the first mark ends at the second, if it always goes straight on.

    The path starts with a dash at the first mark. Of the dashes that may follow, it takes the one
    with the smallest turn, until it has as many dashes as a long snake. The answer can be wrong at
    a crossing where the other snake is straighter.
    """
    dashes = [dash for snake in picture.snakes for dash in snake]
    begin, finish = picture.marks
    path = [min(dash for dash in dashes if dash.tail == begin)]  # if several, any fixed one
    while len(path) < picture.style.contour:
        last = path[-1]
        candidates = [d for d in dashes if d not in path and follows(picture, last, d)]
        if not candidates:
            return False
        path.append(min(candidates, key=lambda d: (_bend(last, d), d)))
    return path[-1].head == finish


def _bend(dash: Dash, after: Dash) -> float:
    """Return the angle between the directions of two dashes, from 0 to pi, in radians."""
    return abs(math.remainder(after.turn - dash.turn, 2 * math.pi))


def follows(picture: TracedPicture, dash: Dash, after: Dash) -> bool:
    """Return whether the dash `after` may follow `dash` in a snake of this picture.

    Its pivot must be the next pivot of `dash`, and the turn between the two dashes times the
    style's `continuity` must be below pi / 2.
    """
    return (
        after.pivot == _next_pivot(picture, dash)
        and _bend(dash, after) * picture.style.continuity < math.pi / 2
    )


def _next_pivot(picture: TracedPicture, dash: Dash) -> tuple[int, int]:
    """Return the pixel one dash and two margins further, rounded up, as the generator does."""
    reach = picture.style.dash + 2 * picture.margin
    return (
        math.ceil(dash.pivot[0] + reach * math.sin(dash.turn)),
        math.ceil(dash.pivot[1] + reach * math.cos(dash.turn)),
    )
