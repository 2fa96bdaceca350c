"""Pathfinder's pictures as the authors' generator draws them, with labels that can be proved.

Two snakes of `contour` dashes grow in turns from seeds that lie `seed_distance` apart, near the
middle; where one comes to a dead end, both start again. Then short snakes are strewn in, as many of
`distractors` as find space in five trials. Their dashes may be brighter. A disc marks the beginning
of one long snake, another the end of the same (label 1) or of the other one (0).

After Linsley et al. 2018, arXiv:1805.08315, with the parameters that the Long Range Arena names for
each side; the law of growth is the authors', trial for trial, in whole numbers: `pathfinder_growth`
says how. Snakes may touch and cross, so the picture alone need not prove a label: the dashes do.
A picture whose dashes can be followed in two ways is drawn again.
Random numbers are whole numbers from a stream of each picture's own: the same on every machine.
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
"""Of a distractor; then it is left out."""
SEED_TRIES = 3
"""Of its first dash, where it would leave the picture."""
LEAST_FREE = 0.01
"""Share of free pixels below which no distractor is tried."""


def draw(style: Style, seed: int, index: int) -> TracedPicture:
    """Draw picture number `index` of a data set."""
    words = RandomNumbers(seed, index)
    label = words.below(2)
    margin = style.margins[words.below(len(style.margins))]
    board = GrowthBoard(kind(style, margin))
    for _ in range(PICTURE_TRIES):
        board.clear()
        targets = _targets(board, style, words)
        if targets is None:
            continue
        snakes = [_dashes(board, snake) for snake in targets]
        if snakes[0][-1].head == snakes[1][-1].head:
            continue  # A disc there would mark an end of both.
        short = _distractors(board, style, words)
        first = words.below(2)
        last = first if label else 1 - first
        marks = snakes[first][0].tail, snakes[last][-1].head
        picture = TracedPicture(
            pixels=_lit(board, targets, short, marks, style.marker_radius),
            label=label,
            snakes=(*snakes, *(_dashes(board, snake) for snake in short)),
            marks=marks,
            style=style,
            margin=margin,
        )
        if is_one_snake(picture) != bool(label):
            raise AssertionError(f"picture {index} of seed {seed} contradicts its label {label}")
        return picture
    raise ValueError(
        f"two snakes of {style.contour} dashes of {style.dash} pixels found no room in "
        f"{style.side} x {style.side} pixels after {PICTURE_TRIES} trials: lower task.contour"
    )


def _targets(board: GrowthBoard, style: Style, words: RandomNumbers) -> list[GrowingSnake] | None:
    """Grow the two long snakes; None at a dead end."""
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
    """Return the degrees of a first dash that fits into the middle, with the rows and columns."""
    edge = 2 * style.seed_distance
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


def _distractors(board: GrowthBoard, style: Style, words: RandomNumbers) -> list[GrowingSnake]:
    """Strew in short snakes, fewer where they do not fit."""
    snakes = []
    for _ in range(style.distractors):
        held = _held(board)
        if held is None:
            break
        for _ in range(SNAKE_TRIES):
            snake = _first(board, held, words)
            if snake is None:
                continue
            before = bytes(board.free)
            if all(board.grow(snake, words) for _ in range(style.distractor - 1)):
                board.occupy(snake)
                snakes.append(snake)
                break
            board.free[:] = before
    return snakes


def _held(board: GrowthBoard) -> Bool[np.ndarray, "w w"] | None:
    """Return which pixels first dashes of short snakes avoid; None where too few are free."""
    side, inside = board.kind.side, slice(board.guard, board.width - board.guard)
    held = np.zeros((board.width, board.width), bool)
    picture = held[inside, inside]
    np.less_equal(board.view[0, inside, inside], FULL - SEEDS_AVOID, out=picture)
    if side * side - np.count_nonzero(picture) < LEAST_FREE * side * side:
        return None
    picture[[0, -1]] = True
    picture[:, [0, -1]] = True
    return held


def _first(
    board: GrowthBoard, held: Bool[np.ndarray, "w w"], words: RandomNumbers
) -> GrowingSnake | None:
    """Lay the first dash of a short snake; None where there is no space."""
    table, side, guard = board.ways, board.kind.side, board.guard
    for _ in range(SEED_TRIES):
        degree = words.below(DEGREES)
        if not table.avoided[degree]:
            return None
        blocked = np.zeros((side, side), bool)
        for y, x in table.avoided[degree]:
            blocked |= held[guard + y : guard + y + side, guard + x : guard + x + side]
        free = np.flatnonzero(~blocked)
        if not len(free):
            return None
        index = board.index(*divmod(int(free[words.below(len(free))]), side))
        way = table.seeds[degree]
        ends = board.pixel(index + way.head), board.pixel(index + way.pivot)
        if all(0 <= at < side for end in ends for at in end):
            return board.seed(degree, index)
    return None


def _dashes(board: GrowthBoard, snake: GrowingSnake) -> tuple[Dash, ...]:
    return tuple(
        Dash(
            board.pixel(index + way.pivot),
            board.pixel(index + way.tail),
            board.pixel(index + way.head),
            way.turn,
        )
        for way, index in snake.dashes
    )


def _lit(
    board: GrowthBoard,
    targets: list[GrowingSnake],
    short: list[GrowingSnake],
    marks: tuple[tuple[int, int], tuple[int, int]],
    radius: float,
) -> UInt8[np.ndarray, "s s"]:
    """Draw the dashes and the discs; the brightest pixel becomes 255."""
    guard, side = board.guard, board.kind.side
    canvas = np.zeros((board.width, board.width), np.float32)
    for which, snakes in enumerate((targets, short)):
        for snake in snakes:
            for way, index in snake.dashes:
                y, x = divmod(index + way.corner, board.width)
                ink = way.ink[which]
                window = canvas[y : y + len(ink), x : x + len(ink)]
                np.maximum(window, ink, out=window)
    picture = canvas[guard : guard + side, guard : guard + side]
    for mark in marks:
        part, levels = disc(mark, radius, side)
        np.maximum(picture[part], levels * np.float32(1 / FULL), out=picture[part])
    pixels: UInt8[np.ndarray, "s s"] = (picture * (255 / picture.max()) + 0.5).astype(np.uint8)
    return pixels
