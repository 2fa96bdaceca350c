"""What a published picture is made of, and which label its dashes allow.

A dash lies on a line from its pivot, and the pivot of the next one lies a dash and two margins
further on that line: a rule of whole pixels, by which any drawn snake can be checked and followed.
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
    """Return whether the marks are the two ends of one snake, as it was drawn.

    Raises:
        ValueError: A snake is torn, or the first mark is no beginning.
    """
    begin, finish = picture.marks
    for snake in picture.snakes:
        for dash, after in pairwise(snake):
            if not follows(picture, dash, after):
                raise ValueError(f"the dash at {after.head} does not follow the one at {dash.head}")
    candidates = [snake for snake in picture.snakes if snake[0].tail == begin]
    if not candidates:
        raise ValueError(f"no snake begins at the mark {begin}")
    return any(snake[-1].head == finish for snake in candidates)


def straightest(picture: TracedPicture) -> bool:
    """Return whether a viewer who goes straight on takes the marks for joined.

    From a dash that begins at the first mark to the one that turns least of those that may follow,
    for as many dashes as a long snake has. Wrong where snakes cross and another goes on straighter.
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
    """Return by how much a dash turns away from another, in radians."""
    return abs(math.remainder(after.turn - dash.turn, 2 * math.pi))


def follows(picture: TracedPicture, dash: Dash, after: Dash) -> bool:
    """Return whether a dash may come after another: where that leads, and not too sharp a turn."""
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
