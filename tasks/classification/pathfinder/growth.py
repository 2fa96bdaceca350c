"""How a snake of the published pictures grows, dash by dash.

The space that a dash takes is a level from 0 to 255 for each pixel, smaller at its rim. The next
dash ends on a pixel of a circle around the pivot. Such a pixel is drawn with the weight
cos²(continuity x turn) times the level that is still free at this pixel and `margin` pixels around.
If the space of the new dash and the taken space add up to 1.8 x 255 in a pixel, another end is
drawn, at most three times.

The space of a dash counts as taken only after the next dash of its snake is placed. So it does not
obstruct its successor, nor a dash of the other snake meanwhile; therefore snakes can touch and
cross.
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
"""Taken level (above 0.3 x 255) from which the first dash of a short snake avoids a pixel."""
DRAWS = 3
"""Most directions that are drawn for a dash."""
WEIGHT_ONE = 1 << 24
"""Unit of weights, which are whole numbers so that all machines agree."""
LEAST_TOTAL = WEIGHT_ONE * FULL // 10_000
"""If the weights of all directions sum to less than this, a snake is at a dead end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DashShape:
    """Parameters of dashes; see `Style`."""

    side: int
    padding: int
    dash: int
    thickness: float
    margin: int
    continuity: float
    contrasts: tuple[float, float]
    """Brightness of long and of short snakes."""

    @property
    def radius(self) -> int:
        """Distance in pixels from the first pixel of a dash to the edge of its space, at most."""
        return self.dash + math.ceil(self.thickness) + self.margin

    @property
    def guard(self) -> int:
        """Width in pixels of the border of a board around the picture, so that dashes fit."""
        return self.radius + self.margin + 2

    @property
    def width(self) -> int:
        """Number of pixels in a row of a board."""
        return self.side + 2 * self.guard


def kind(style: Style, margin: int) -> DashShape:
    """Return the parameters of dashes of a style, with one of its margins."""
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
    """A dash of one direction, relative to its pivot; the first dash of a snake, to its tail.

    Positions are differences of flat indices of a board.
    """

    turn: float
    """Direction in radians, clockwise from the right."""
    pivot: int
    tail: int
    """Position of the first pixel of the dash."""
    head: int
    """Position of its last pixel."""
    step: tuple[float, float]
    """Rows and columns from the pivot to the next pivot."""
    corner: int
    """Position of the upper left pixel of `ink` and `left`."""
    ink: tuple[Float32[np.ndarray, "n n"], Float32[np.ndarray, "n n"]]
    """Light of the dash in a long and in a short snake."""
    left: UInt8[np.ndarray, "2 n n"]
    """Levels that the dash leaves free for other dashes, and for the ends of other dashes."""
    core: list[tuple[int, int]]
    """Position of each pixel where dashes may clash, and the level that must be free there."""


Followers: TypeAlias = list[tuple[int, int, Way]]
"""Possible next dashes: position of the head, weight, and the dash."""


class Ways(NamedTuple):
    """All directions of one kind of dash."""

    seeds: list[Way]
    """The first dash of a snake, by degree."""
    avoided: list[list[tuple[int, int]]]
    """Pixels around the tail that must be free of other snakes, by degree. An empty list means that
    the authors' generator never uses this direction for a first dash."""
    after_seed: list[Followers]
    """Dashes that may follow a first dash, by its degree."""
    after: dict[float, Followers]
    """Dashes that may follow any other dash, by its `turn`."""


@cache
def ways(kind: DashShape) -> Ways:
    """Return the dashes of all directions: 360 for a first dash, and one for each later end."""
    turns = [math.radians(degree - DEGREES // 2) for degree in range(DEGREES)]
    reach = kind.dash + kind.margin  # radius of the circle of heads, scanned in arcs of 1 pixel
    heads = sorted(
        {
            (math.floor(reach * math.sin(step / reach)), math.floor(reach * math.cos(step / reach)))
            for step in range(math.ceil(2 * math.pi * reach))
        }
    )
    following = [_later_dash(kind, head) for head in heads]
    return Ways(
        seeds=[_first_dash(kind, turn) for turn in turns],
        avoided=[_avoided(kind, turn) for turn in turns],
        after_seed=[_followers(kind, turn, following) for turn in turns],
        after={way.turn: _followers(kind, way.turn, following) for way in following},
    )


def move_pixel(pixel: tuple[int, int], turn: float, distance: int) -> tuple[int, int]:
    """Return the pixel `distance` pixels from `pixel` in direction `turn`, rounded up."""
    return (
        pixel[0] + rounded_up(distance * math.sin(turn)),
        pixel[1] + rounded_up(distance * math.cos(turn)),
    )


def opposite(turn: float) -> float:
    """Return the opposite direction of `turn`, in radians from -pi to pi."""
    return turn + math.pi if turn < 0 else turn - math.pi


def _flat(kind: DashShape, pixel: tuple[int, int]) -> int:
    """Return the flat index on a board of (row, column), or of a difference of two pixels."""
    row, column = pixel
    return row * kind.width + column


def _step(kind: DashShape, turn: float) -> tuple[float, float]:
    """Return rows and columns from a pivot to the next: a dash with its margin at both ends."""
    length = kind.dash + 2 * kind.margin
    return length * math.sin(turn), length * math.cos(turn)


def _later_dash(kind: DashShape, head: tuple[int, int]) -> Way:
    """Return a later dash of a snake, which ends at `head`, row and column from the pivot."""
    turn = math.atan2(*head)
    back = opposite(turn)
    corner, ink, space, left = _stamp(kind, back, head)
    # Where `space` is less than this, it cannot clash even with a pixel that is taken in full.
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


def _first_dash(kind: DashShape, turn: float) -> Way:
    """Return the first dash of a snake, with the direction `turn` in radians."""
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
    kind: DashShape, turn: float, start: tuple[int, int]
) -> tuple[int, tuple[np.ndarray, np.ndarray], np.ndarray, np.ndarray]:
    """Return `corner`, `ink`, space and `left` (see `Way`) of a dash that begins at `start`.

    The pictures of the dash and of its space are padded by `kind.margin` pixels on each side, so
    that there is room for the dilation of the space by as many pixels.
    """
    levels, space = (
        np.pad(part, kind.margin) for part in dash(turn, kind.dash, kind.thickness, kind.margin)
    )
    half = len(space) // 2
    row, column = start
    corner = _flat(kind, (row - half, column - half))
    # The ink of a dash in a long snake, and in one of the short distractors.
    ink_of_long, ink_of_short = (
        (levels * (contrast / FULL)).astype(np.float32) for contrast in kind.contrasts
    )
    # What the dash leaves free for other dashes, and, with more distance, for their ends.
    left = FULL - np.stack([space, grey_dilation(space, kind.margin)])
    return corner, (ink_of_long, ink_of_short), space, left


def _avoided(kind: DashShape, turn: float) -> list[tuple[int, int]]:
    """Return the pixels around the tail that a first dash fills, shifted by one row and column.

    The authors' generator has this shift. It also never uses a direction for which all pixels would
    be outside the picture at one of its corners; the list is then empty.
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
    """Return the dashes of `following` that may come after a dash with direction `last`."""
    followers = []
    for way in following:
        turn = abs(math.remainder(way.turn - last, 2 * math.pi))
        bent = min(kind.continuity * turn, math.pi / 2)
        if weight := round(math.cos(bent) ** 2 * WEIGHT_ONE):
            followers.append((way.head, weight, way))
    return followers


class GrowingSnake:
    """A snake while it grows; it begins with the dash `way`, relative to the pixel `index`."""

    def __init__(self, way: Way, index: int, pivot: int, follow: Followers) -> None:
        self.dashes = [(way, index)]
        """Dashes so far, each with the flat index of the pixel that it is relative to."""
        self.pivot, self.follow = pivot, follow
        """Pivot of the next dash, and the dashes that are possible."""


class GrowthBoard:
    """The levels that are free in a picture, for the space of dashes and for their ends."""

    def __init__(self, kind: DashShape) -> None:
        self.kind, self.ways = kind, ways(kind)
        self.width, self.guard, self.far = kind.width, kind.guard, kind.width**2
        self.free = bytearray(empty_board(kind))
        """Free levels of all pixels: first for the space of dashes, then, `far` bytes later, for
        their ends."""
        self.view = np.frombuffer(self.free, np.uint8).reshape(2, self.width, self.width)

    def clear(self) -> None:
        """Remove all snakes."""
        self.free[:] = empty_board(self.kind)

    def index(self, y: int, x: int) -> int:
        """Return the flat index on the board of the picture's pixel (y, x)."""
        return (y + self.guard) * self.width + x + self.guard

    def pixel(self, index: int) -> tuple[int, int]:
        """Return the row and column in the picture of the pixel with this flat index."""
        y, x = divmod(index, self.width)
        return y - self.guard, x - self.guard

    def onward(self, pivot: int, way: Way) -> int:
        """Return the pivot of the dash after `way` at `pivot`, as flat indices.

        As in the authors' generator, rounding errors of sine and cosine are rounded up, too, so
        near the upper and the left border the pivot can be a pixel further inside.
        """
        y, x = self.pixel(pivot)
        return self.index(math.ceil(y + way.step[0]), math.ceil(x + way.step[1]))

    def seed(self, degree: int, index: int) -> GrowingSnake:
        """Return a snake of one dash in this direction, with its tail at the flat index `index`."""
        way = self.ways.seeds[degree]
        pivot = self.onward(index + way.pivot, way)
        return GrowingSnake(way, index, pivot, self.ways.after_seed[degree])

    def grow(self, snake: GrowingSnake, words: RandomNumbers) -> bool:
        """Add the next dash to a snake; return False, without a dash, at a dead end."""
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
        """Mark the space of a snake's last dash as taken."""
        way, index = snake.dashes[-1]
        y, x = divmod(index + way.corner, self.width)
        window = self.view[:, y : y + len(way.left[0]), x : x + len(way.left[0])]
        np.minimum(window, way.left, out=window)


@cache
def empty_board(kind: DashShape) -> bytes:
    """Return the free levels of an empty board; no dash may end outside the picture."""
    taken = np.full((kind.side, kind.side), FULL, np.uint8)
    inside = slice(kind.padding, kind.side - kind.padding)
    taken[inside, inside] = 0
    space = np.pad(FULL - taken, kind.guard, constant_values=FULL)
    ends = np.pad(FULL - grey_dilation(taken, kind.margin), kind.guard)
    return space.tobytes() + ends.tobytes()
