"""How a snake of the published pictures grows: soft space around dashes, and the next direction.

The space that a dash takes is a level of each pixel from 0 to 255, faint at its rim. The next dash
may end on the pixels of a circle around the pivot, with the weight cos²(continuity x turn) times
the level that is free there, `margin` pixels around included. Where its own space and what is
taken come to 1.8 of full levels in a pixel, another is drawn, three times in all.

The last dash of a snake becomes taken when the next one is laid: it does not stand in the way of
its own successor, and for one turn not in that of others. Snakes can therefore touch and cross.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float32, UInt8

from lra.tasks.classification.pathfinder.ink import dash, grey_dilation, rounded_up
from lra.tasks.classification.pathfinder.styles import RandomNumbers, Style

DEGREES = 360
FULL = 255
CLASH = 459
"""Sum of two levels from which two dashes cannot share a pixel: 1.8 x 255."""
SEEDS_AVOID = 77
"""Level from which the first dash of a short snake avoids a pixel: above 0.3 x 255."""
DRAWS = 3
"""Directions that are drawn for a dash, until one fits."""
WEIGHT_ONE = 1 << 24
"""Weights are whole numbers: the same on every machine."""
LEAST_TOTAL = WEIGHT_ONE * FULL // 10_000
"""Sum of weights below which a snake has come to a dead end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DashShape:
    """What decides how dashes look, and how they follow each other."""

    side: int
    padding: int
    dash: int
    thickness: float
    margin: int
    continuity: float
    contrasts: tuple[float, float]
    """Of long and of short snakes."""

    @property
    def radius(self) -> int:
        """Pixels from a dash's first one that its space can reach."""
        return self.dash + math.ceil(self.thickness) + self.margin

    @property
    def guard(self) -> int:
        """Pixels around the picture on a board, so that no stamp leaves it."""
        return self.radius + self.margin + 2

    @property
    def width(self) -> int:
        """Pixels of a row of a board."""
        return self.side + 2 * self.guard


def kind(style: Style, margin: int) -> DashShape:
    """Return the dashes of a style, with one of its margins."""
    return DashShape(
        side=style.side,
        padding=style.padding,
        dash=style.dash,
        thickness=style.thickness,
        margin=margin,
        continuity=style.continuity,
        contrasts=(style.contrast, style.distractor_contrast),
    )


class Way(NamedTuple):
    """One direction of a dash, relative to a pixel; numbers count pixels of a board."""

    turn: float
    """Radians, 0 to the right, then downwards."""
    pivot: int
    """0; a snake's first dash is relative to its tail instead, and has its pivot here."""
    tail: int
    """Where the dash begins."""
    head: int
    """Where it ends."""
    step: tuple[float, float]
    """Down and right to the next pivot."""
    corner: int
    """The first pixel of what follows."""
    ink: tuple[Float32[np.ndarray, "n n"], Float32[np.ndarray, "n n"]]
    """Light of the dash in a long and in a short snake."""
    left: UInt8[np.ndarray, "2 n n"]
    """Levels that it leaves free: for other dashes, and for their ends."""
    core: list[tuple[int, int]]
    """Pixels that may clash, each with the level that has to be free there."""


Followers: TypeAlias = list[tuple[int, int, Way]]
"""Ways that may come next: where they end, with what weight."""


class Ways(NamedTuple):
    """All directions of one kind of dash."""

    seeds: list[Way]
    """By degree: the first dash of a snake. Its tail is at 0."""
    avoided: list[list[tuple[int, int]]]
    """By degree: pixels around the tail that have to be free of other snakes. None: the authors'
    generator never lays a first dash of this direction."""
    after_seed: list[Followers]
    """By degree: which ways may follow."""
    after: dict[float, Followers]
    """By the turn of a way, the same."""


@cache
def ways(kind: DashShape) -> Ways:
    """Return the directions of a kind of dash."""
    turns = [math.radians(degree - DEGREES // 2) for degree in range(DEGREES)]
    reach = kind.dash + kind.margin
    heads = sorted(
        {
            (math.floor(reach * math.sin(step / reach)), math.floor(reach * math.cos(step / reach)))
            for step in range(math.ceil(2 * math.pi * reach))
        }
    )
    following = [_way(kind, head) for head in heads]
    return Ways(
        seeds=[_seed(kind, turn) for turn in turns],
        avoided=[_avoided(kind, turn) for turn in turns],
        after_seed=[_followers(kind, turn, following) for turn in turns],
        after={way.turn: _followers(kind, way.turn, following) for way in following},
    )


def move_pixel(pixel: tuple[int, int], turn: float, distance: int) -> tuple[int, int]:
    """Return the pixel some way off; fractions are rounded up."""
    return (
        pixel[0] + rounded_up(distance * math.sin(turn)),
        pixel[1] + rounded_up(distance * math.cos(turn)),
    )


def opposite(turn: float) -> float:
    """Return the opposite direction."""
    return turn + math.pi if turn < 0 else turn - math.pi


def _flat(kind: DashShape, pixel: tuple[int, int]) -> int:
    return pixel[0] * kind.width + pixel[1]


def _step(kind: DashShape, turn: float) -> tuple[float, float]:
    length = kind.dash + 2 * kind.margin
    return length * math.sin(turn), length * math.cos(turn)


def _way(kind: DashShape, head: tuple[int, int]) -> Way:
    turn = math.atan2(*head)
    back = opposite(turn)
    corner, ink, space, left = _stamp(kind, back, head)
    rows, columns = (axis.tolist() for axis in np.nonzero(space >= CLASH - FULL))
    return Way(
        turn=turn,
        pivot=0,
        tail=_flat(kind, move_pixel(head, back, kind.dash)),
        head=_flat(kind, head),
        step=_step(kind, turn),
        corner=corner,
        ink=ink,
        left=left,
        core=[
            (corner + _flat(kind, (y, x)), int(space[y, x]) - CLASH + FULL + 1)
            for y, x in zip(rows, columns, strict=True)
        ],
    )


def _seed(kind: DashShape, turn: float) -> Way:
    head = move_pixel((0, 0), turn, kind.dash)
    pivot = move_pixel(head, opposite(turn), kind.dash + kind.margin)
    corner, ink, _, left = _stamp(kind, turn, (0, 0))
    return Way(
        turn=turn,
        pivot=_flat(kind, pivot),
        tail=0,
        head=_flat(kind, head),
        step=_step(kind, turn),
        corner=corner,
        ink=ink,
        left=left,
        core=[],
    )


def _stamp(
    kind: DashShape, turn: float, begun: tuple[int, int]
) -> tuple[int, tuple[np.ndarray, np.ndarray], np.ndarray, np.ndarray]:
    """Return a dash drawn from a pixel: its corner, light, space, and what it leaves free."""
    levels, space = (
        np.pad(each, kind.margin) for each in dash(turn, kind.dash, kind.thickness, kind.margin)
    )
    half = len(space) // 2
    corner = _flat(kind, (begun[0] - half, begun[1] - half))
    long, short = ((levels * (contrast / FULL)).astype(np.float32) for contrast in kind.contrasts)
    left = FULL - np.stack([space, grey_dilation(space, kind.margin)])
    return corner, (long, short), space, left


def _avoided(kind: DashShape, turn: float) -> list[tuple[int, int]]:
    """Return the pixels that a first dash fills, one row and one column too far on.

    They are compared with the picture around every pixel. At a corner all of them may lie outside;
    the authors' generator then gives the direction up, for the whole picture.
    """
    _, space = dash(turn, kind.dash, kind.thickness, kind.margin)
    rows, columns = (axis - kind.radius + 1 for axis in np.nonzero(space == FULL))
    reach = kind.dash + kind.margin
    pixels = [
        (y, x)
        for y, x in zip(rows.tolist(), columns.tolist(), strict=True)
        if max(abs(y), abs(x)) <= reach
    ]
    corners = ((down, right) for down in (-1, 1) for right in (-1, 1))
    inside = all(any(y * down >= 0 <= x * right for y, x in pixels) for down, right in corners)
    return pixels if inside else []


def _followers(kind: DashShape, last: float, following: list[Way]) -> Followers:
    followers = []
    for way in following:
        turn = abs(math.remainder(way.turn - last, 2 * math.pi))
        bent = min(kind.continuity * turn, math.pi / 2)
        if weight := round(math.cos(bent) ** 2 * WEIGHT_ONE):
            followers.append((way.head, weight, way))
    return followers


class GrowingSnake:
    """A snake while it grows."""

    def __init__(self, way: Way, index: int, pivot: int, follow: Followers) -> None:
        self.dashes = [(way, index)]
        """Each with the pixel of the board that it is relative to."""
        self.pivot, self.follow = pivot, follow
        """Where the next dash is laid from, and its ways."""


class GrowthBoard:
    """What is free in a picture: of each pixel for a dash's space, and for its end."""

    def __init__(self, kind: DashShape) -> None:
        self.kind, self.ways = kind, ways(kind)
        self.width, self.guard, self.far = kind.width, kind.guard, kind.width**2
        self.free = bytearray(empty_board(kind))
        """Levels of all pixels, twice; the second half says where dashes may end."""
        self.view = np.frombuffer(self.free, np.uint8).reshape(2, self.width, self.width)

    def clear(self) -> None:
        """Take everything away."""
        self.free[:] = empty_board(self.kind)

    def index(self, y: int, x: int) -> int:
        """Return the number of a picture's pixel on the board."""
        return (y + self.guard) * self.width + x + self.guard

    def pixel(self, index: int) -> tuple[int, int]:
        """Return the row and the column of a pixel."""
        y, x = divmod(index, self.width)
        return y - self.guard, x - self.guard

    def onward(self, pivot: int, way: Way) -> int:
        """Return the pivot after a dash.

        Sums are rounded up as they stand: straight up, down and to the left the sine or cosine is
        not quite 0, and near the upper and the left border the next pivot lies a pixel further in.
        """
        y, x = self.pixel(pivot)
        return self.index(math.ceil(y + way.step[0]), math.ceil(x + way.step[1]))

    def seed(self, degree: int, index: int) -> GrowingSnake:
        """Return a snake of one dash.

        Args:
            degree: Direction of the dash, in whole degrees.
            index: Flat index of the pixel at its tail.
        """
        way = self.ways.seeds[degree]
        pivot = self.onward(index + way.pivot, way)
        return GrowingSnake(way, index, pivot, self.ways.after_seed[degree])

    def grow(self, snake: GrowingSnake, words: RandomNumbers) -> bool:
        """Lay the next dash of a snake; False at a dead end."""
        free, pivot = self.free, snake.pivot
        end = pivot + self.far
        sums = list(accumulate([free[end + head] * weight for head, weight, _ in snake.follow]))
        if not sums or sums[-1] < LEAST_TOTAL:
            return False
        for _ in range(DRAWS):
            way = snake.follow[bisect_right(sums, words.below(sums[-1]))][2]
            for offset, least in way.core:
                if free[pivot + offset] < least:
                    break
            else:
                self.occupy(snake)
                snake.dashes.append((way, pivot))
                snake.pivot = self.onward(pivot, way)
                snake.follow = self.ways.after[way.turn]
                return True
        return False

    def occupy(self, snake: GrowingSnake) -> None:
        """Take the space of a snake's last dash."""
        way, index = snake.dashes[-1]
        y, x = divmod(index + way.corner, self.width)
        window = self.view[:, y : y + len(way.left[0]), x : x + len(way.left[0])]
        np.minimum(window, way.left, out=window)


@cache
def empty_board(kind: DashShape) -> bytes:
    """Return an empty board: the border is taken, and beyond it no dash may end."""
    taken = np.full((kind.side, kind.side), FULL, np.uint8)
    inside = slice(kind.padding, kind.side - kind.padding)
    taken[inside, inside] = 0
    space = np.pad(FULL - taken, kind.guard, constant_values=FULL)
    ends = np.pad(FULL - grey_dilation(taken, kind.margin), kind.guard)
    return space.tobytes() + ends.tobytes()
