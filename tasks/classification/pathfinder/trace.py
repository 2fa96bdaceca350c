"""The parts of a published picture, and the label that follows from them.

A snake is a chain of dashes. A dash lies on a line from its pivot, and the pivot of the next dash
lies one dash and two margins further on that line. The rule is one of whole pixels, so that any
snake can be checked and followed dash by dash.
"""

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8

from lra.tasks.classification.pathfinder.styles import Style


class Dash(NamedTuple):
    """Where one dash lies; pixels are row and column."""

    pivot: tuple[int, int]
    """The dash lies on a line from here, a margin away."""
    tail: tuple[int, int]
    head: tuple[int, int]
    turn: float
    """Direction in radians, 0 to the right, then downwards."""


class TracedPicture(NamedTuple):
    """One example, and what proves its label."""

    pixels: UInt8[np.ndarray, "s s"]
    label: int
    snakes: tuple[tuple[Dash, ...], ...]
    """The two long ones, then the short ones."""
    marks: tuple[tuple[int, int], tuple[int, int]]
    """The marked pixels: where a long snake begins, and where one ends."""
    style: Style
    margin: int


def is_one_snake(picture: TracedPicture) -> bool:
    """Return whether one and the same snake joins the two marks: True is label 1, False label 0.

    The list of dashes of each snake decides, and each is first checked to be an unbroken chain.

    Raises:
        ValueError: Two neighbouring dashes of a snake do not fit together, or no snake begins at
            the first mark.
    """
    begin, finish = picture.marks
    for snake in picture.snakes:
        for dash, after in pairwise(snake):
            if not follows(picture, dash, after):
                raise ValueError(f"the dash at {after.head} does not follow the one at {dash.head}")
    marked_snakes = [snake for snake in picture.snakes if snake[0].tail == begin]
    if not marked_snakes:
        raise ValueError(f"no snake begins at the mark {begin}")
    return any(snake[-1].head == finish for snake in marked_snakes)


def straightest(picture: TracedPicture) -> bool:
    """Guess the label as a viewer does who always goes straight on: whether the marks are joined.

    The viewer starts with a dash at the first mark and goes on to the dash that turns least of
    those that may follow, for as many dashes as a long snake has. The guess can be wrong where
    snakes cross and the other snake goes on straighter.
    """
    dashes = [dash for snake in picture.snakes for dash in snake]
    begin, finish = picture.marks
    path = [min(dash for dash in dashes if dash.tail == begin)]
    while len(path) < picture.style.contour:
        last = path[-1]
        after = [d for d in dashes if d not in path and follows(picture, last, d)]
        if not after:
            return False
        path.append(min(after, key=lambda d: (_bend(last, d), d)))
    return path[-1].head == finish


def _bend(dash: Dash, after: Dash) -> float:
    """Return the angle between the directions of two dashes, from 0 to pi, in radians."""
    return abs(math.remainder(after.turn - dash.turn, 2 * math.pi))


def follows(picture: TracedPicture, dash: Dash, after: Dash) -> bool:
    """Return whether the dash `after` may follow `dash` in a snake of this picture.

    Its pivot has to be where `dash` leads, and the turn between them has to be below the style's
    largest.
    """
    return (
        after.pivot == _next_pivot(picture, dash)
        and _bend(dash, after) * picture.style.continuity < math.pi / 2
    )


def _next_pivot(picture: TracedPicture, dash: Dash) -> tuple[int, int]:
    reach = picture.style.dash + 2 * picture.margin
    return (
        math.ceil(dash.pivot[0] + reach * math.sin(dash.turn)),
        math.ceil(dash.pivot[1] + reach * math.cos(dash.turn)),
    )
