"""Pathfinder's pictures as the authors' generator draws them, with provable labels.

Two long snakes of `contour` dashes grow alternately, from points near the middle that are
`seed_distance` apart. If one reaches a dead end, both start again. Then `distractors` short snakes
are added, each at the first of five trials that finds space; their dashes may be brighter. One disc
marks the beginning of a long snake, and another the end of the same (label 1) or of the other (0).

The method is that of Linsley et al. 2018, arXiv:1805.08315, with the Long Range Arena's parameters
for each side. Snakes grow as in the authors' generator, but in whole numbers: see the module
`growth`. Snakes may touch and cross, so the dashes, not the picture alone, prove a label.
Each picture has a separate stream of random whole numbers, the same on every machine.
"""

import math
from functools import cache

import numpy as np
from jaxtyping import Bool, UInt8

from lra.tasks.classification.pathfinder.growth import (
    DEGREES,
    FULL,
    SEEDS_AVOID,
    DashShape,
    GrowingSnake,
    GrowthBoard,
    kind,
    ways,
)
from lra.tasks.classification.pathfinder.ink import disc
from lra.tasks.classification.pathfinder.styles import RandomNumbers, Style
from lra.tasks.classification.pathfinder.trace import Dash, TracedPicture, is_one_snake

PICTURE_TRIES = 50_000
SNAKE_TRIES = 5
"""Trials for a short snake before it is omitted."""
SEED_TRIES = 3
"""Trials for the first dash of a short snake if it would leave the picture."""
LEAST_FREE = 0.01
"""Share of free pixels below which no further short snake is tried."""


def draw(style: Style, seed: int, index: int) -> TracedPicture:
    """Return picture number `index` of the data set with this style and seed."""
    words = RandomNumbers(seed, index)
    label = words.below(2)
    margin = style.margins[words.below(len(style.margins))]
    board = GrowthBoard(kind(style, margin))
    for _ in range(PICTURE_TRIES):
        board.clear()
        long = _grow_long(board, style, words)
        if long is None:
            continue
        snakes = [_dashes(board, snake) for snake in long]
        if snakes[0][-1].head == snakes[1][-1].head:
            continue  # a disc at this pixel would mark the ends of both snakes
        short = _grow_short(board, style, words)
        first = words.below(2)
        last = first if label else 1 - first
        marks = snakes[first][0].tail, snakes[last][-1].head
        picture = TracedPicture(
            pixels=_draw_pixels(board, long, short, marks, style.marker_radius),
            label=label,
            snakes=(*snakes, *(_dashes(board, snake) for snake in short)),
            marks=marks,
            style=style,
            margin=margin,
        )
        if is_one_snake(picture) != bool(label):
            raise AssertionError(
                f"the snakes of picture {index}, seed {seed}, contradict its label {label}"
            )
        return picture
    raise ValueError(
        f"in {PICTURE_TRIES} trials, two snakes of {style.contour} dashes of {style.dash} pixels "
        f"did not fit into a picture of {style.side} x {style.side} pixels; lower task.contour"
    )


def _grow_long(board: GrowthBoard, style: Style, words: RandomNumbers) -> list[GrowingSnake] | None:
    """Return the two long snakes; None if one reaches a dead end."""
    degree, rows, columns = (starts := _middle(board.kind, style))[words.below(len(starts))]
    y, x = (span.start + words.below(len(span)) for span in (rows, columns))
    snakes = [board.seed(degree, board.index(y, x))]
    degree = words.below(DEGREES)
    turn = math.radians(words.below(DEGREES))
    y += round(style.seed_distance * math.sin(turn))
    x += round(style.seed_distance * math.cos(turn))
    snakes.append(board.seed(degree, board.index(y, x)))
    for _ in range(style.contour - 1):
        if not all(board.grow(snake, words) for snake in snakes):
            return None
    board.occupy(snakes[1])
    return snakes


@cache
def _middle(dashes: DashShape, style: Style) -> list[tuple[int, range, range]]:
    """Return (degree, rows, columns) for each direction of a first dash near the middle.

    `rows` and `columns` are the positions of the dash's tail at which all pixels around it
    (`avoided`, relative to the tail) are in the middle. Unused directions have no such pixels.
    """
    edge = 2 * style.seed_distance  # pixels that the dash keeps from the picture's border
    placements = []
    for degree, avoided in enumerate(ways(dashes).avoided):
        if not avoided:
            continue
        spans = [
            range(edge - min(axis), style.side - edge - max(axis))
            for axis in zip(*avoided, strict=True)
        ]
        if all(spans):
            placements.append((degree, spans[0], spans[1]))
    return placements


def _grow_short(board: GrowthBoard, style: Style, words: RandomNumbers) -> list[GrowingSnake]:
    """Return up to `style.distractors` short snakes: those that fit."""
    snakes = []
    for _ in range(style.distractors):
        taken = _taken_pixels(board)
        if taken is None:
            break
        for _ in range(SNAKE_TRIES):
            snake = _place_first_dash(board, taken, words)
            if snake is None:
                continue
            before = bytes(board.free)
            if all(board.grow(snake, words) for _ in range(style.distractor - 1)):
                board.occupy(snake)
                snakes.append(snake)
                break
            board.free[:] = before
    return snakes


def _taken_pixels(board: GrowthBoard) -> Bool[np.ndarray, "w w"] | None:
    """Return which pixels the first dash of a short snake must avoid; None if few are free.

    The pixels at the border of the picture count as taken.
    """
    side, inside = board.kind.side, slice(board.guard, board.width - board.guard)
    taken = np.zeros((board.width, board.width), bool)
    picture = taken[inside, inside]
    np.less_equal(board.view[0, inside, inside], FULL - SEEDS_AVOID, out=picture)
    if side * side - np.count_nonzero(picture) < LEAST_FREE * side * side:
        return None
    picture[[0, -1]] = True
    picture[:, [0, -1]] = True
    return taken


def _place_first_dash(
    board: GrowthBoard, taken: Bool[np.ndarray, "w w"], words: RandomNumbers
) -> GrowingSnake | None:
    """Return a short snake of one dash, at a random free place; None if there is none."""
    table, side, guard = board.ways, board.kind.side, board.guard
    for _ in range(SEED_TRIES):
        degree = words.below(DEGREES)
        if not table.avoided[degree]:
            return None
        blocked = np.zeros((side, side), bool)
        for y, x in table.avoided[degree]:  # block tails for which this pixel is taken
            blocked |= taken[guard + y : guard + y + side, guard + x : guard + x + side]
        free = np.flatnonzero(~blocked)
        if not len(free):
            return None
        index = board.index(*divmod(int(free[words.below(len(free))]), side))
        way = table.seeds[degree]
        ends = board.pixel(index + way.head), board.pixel(index + way.pivot)
        if all(0 <= coordinate < side for end in ends for coordinate in end):
            return board.seed(degree, index)
    return None


def _dashes(board: GrowthBoard, snake: GrowingSnake) -> tuple[Dash, ...]:
    """Return the dashes of a snake, with pixels as row and column of the picture."""
    return tuple(
        Dash(
            board.pixel(index + way.pivot),
            board.pixel(index + way.tail),
            board.pixel(index + way.head),
            way.turn,
        )
        for way, index in snake.dashes
    )


def _draw_pixels(
    board: GrowthBoard,
    long: list[GrowingSnake],
    short: list[GrowingSnake],
    marks: tuple[tuple[int, int], tuple[int, int]],
    radius: float,
) -> UInt8[np.ndarray, "s s"]:
    """Return the picture of dashes, and of discs at `marks`; its brightest pixel is 255."""
    guard, side = board.guard, board.kind.side  # border of the board, side of the picture
    canvas = np.zeros((board.width, board.width), np.float32)
    for is_short, snakes in enumerate((long, short)):
        for snake in snakes:
            for way, index in snake.dashes:
                y, x = divmod(index + way.corner, board.width)
                ink = way.ink[is_short]  # brighter in short snakes, for some sides
                window = canvas[y : y + len(ink), x : x + len(ink)]
                np.maximum(window, ink, out=window)
    picture = canvas[guard : guard + side, guard : guard + side]
    for mark in marks:
        part, levels = disc(mark, radius, side)
        np.maximum(picture[part], levels * np.float32(1 / FULL), out=picture[part])
    pixels: UInt8[np.ndarray, "s s"] = (picture * (255 / picture.max()) + 0.5).astype(np.uint8)
    return pixels
