"""Pathfinder pictures: two dashed snakes among short ones, two discs, and what joins them.

Two snakes of `contour` dashes grow from seeds that lie `seed_distance` apart, in turns. The next
dash points to a pixel of a circle, drawn with the weight cos²(continuity x turn), or 0 where there
is no space. Then short snakes are strewn in as distractors, fewer where they do not fit. A disc
marks the beginning of one snake, another the end of the same (label 1) or of the other one (0).

After Linsley et al. 2018, arXiv:1805.08315, with the parameters of the Long Range Arena. The space
of a dash is never shared with any but its predecessor, so that the middle lines of two snakes
cannot touch: the label of every picture is checked by a search along the middle lines.
Random numbers are whole numbers from a stream of each picture's own: the same on every machine.
"""

import math
from functools import cache
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8

from lra.tasks.classification.pathfinder.dashes import (
    DEGREES,
    Stamp,
    Stamps,
    StampShape,
    disc,
    stamps,
)
from lra.tasks.classification.pathfinder.styles import RandomNumbers, Style

SEED_TRIES = 60
"""Places that are tried for a snake's first dash."""
PICTURE_TRIES = 2000
STEP_TRIES = 6
"""Dashes that are laid at most, over those of a picture."""
STEPS_BACK = 6
"""Dashes that are taken back at most, from a dead end."""
SNAKE_TRIES = 5
"""Of a distractor; then it is left out."""


class SeparatedPicture(NamedTuple):
    """One example, and what proves its label."""

    pixels: UInt8[np.ndarray, "s s"]
    label: int
    lines: int
    """The middle lines of all snakes, as bits."""
    marks: tuple[int, int]
    """Bits of the two marked pixels."""
    width: int
    """Bits of a row."""


class SeparatedSnake(NamedTuple):
    """A snake while it grows."""

    pivot: int
    """Bit of the pixel from which the next dash is laid."""
    follow: list[tuple[int, int]]
    """Ways that may come next, with weights."""
    mask: int
    """Pixels of the last dash, as bits of the board."""
    dashes: tuple[tuple[Stamp, int], ...]
    """Each with the bit of its pivot."""


def _stamp_shape(style: Style, margin: int) -> StampShape:
    return StampShape(
        side=style.side,
        dash=style.dash,
        thickness=style.thickness,
        margin=margin,
        continuity=style.continuity,
    )


class SeparatedBoard:
    """The taken pixels of one picture."""

    def __init__(self, style: Style, margin: int, words: RandomNumbers) -> None:
        self.style, self.words = style, words
        self.stamps: Stamps = stamps(_stamp_shape(style, margin))
        kind = self.stamps.kind
        self.width, self.radius, self.guard = kind.width, kind.radius, kind.guard
        self.corner = self.radius * (self.width + 1)
        """From the bit of a pivot back to the bit of its stamp's corner."""
        self.taken = self.reach = _border(style.side, style.padding, self.guard)

    def bit(self, y: int, x: int) -> int:
        """Return the number of a pixel's bit."""
        return (y + self.guard) * self.width + x + self.guard

    def pixel(self, bit: int) -> tuple[int, int]:
        """Return the row and the column of a bit."""
        y, x = divmod(bit, self.width)
        return y - self.guard, x - self.guard

    def moved(self, bit: int, by: tuple[int, int]) -> int:
        """Return the bit of a pixel some way off."""
        return bit + by[0] * self.width + by[1]

    def seed(self, degree: int, y: int, x: int) -> SeparatedSnake | None:
        """Lay a first dash that begins at a pixel; None where there is no space."""
        stamp = self.stamps.seeds[degree]
        if not (0 <= y < self.style.side and 0 <= x < self.style.side):
            return None
        pivot = self.moved(self.bit(y, x), (-stamp.tail[0], -stamp.tail[1]))
        if pivot < self.corner or self.taken >> (pivot - self.corner) & stamp.mask:
            return None
        mask = stamp.mask << (pivot - self.corner)
        end = self.moved(pivot, stamp.end)
        return SeparatedSnake(end, self.stamps.after_seed[degree], mask, ((stamp, pivot),))

    def grown(self, snake: SeparatedSnake) -> SeparatedSnake | None:
        """Lay the next dash; None where there is no space. Takes the pixels of the last one."""
        near = self.reach >> (snake.pivot - self.corner)
        occupied = self.taken >> (snake.pivot - self.corner)
        ways = self.stamps.ways
        free, total = [], 0
        for way, weight in snake.follow:
            head = ways[way].head
            if not near >> (head[0] + self.radius) * self.width + head[1] + self.radius & 1:
                total += weight
                free.append((way, weight))
        while free:
            index, drawn = 0, self.words.below(total)
            while drawn >= free[index][1]:
                drawn -= free[index][1]
                index += 1
            way, weight = free.pop(index)
            total -= weight
            stamp = ways[way]
            if not occupied & stamp.mask:
                self.take(snake)
                return SeparatedSnake(
                    pivot=self.moved(snake.pivot, stamp.end),
                    follow=self.stamps.after_way[way],
                    mask=stamp.mask << (snake.pivot - self.corner),
                    dashes=(*snake.dashes, (stamp, snake.pivot)),
                )
        return None

    def take(self, snake: SeparatedSnake) -> None:
        """Take the pixels of a snake's last dash."""
        stamp, pivot = snake.dashes[-1]
        self.taken |= snake.mask
        self.reach |= stamp.reach << (pivot - self.corner)


@cache
def _border(side: int, padding: int, guard: int) -> int:
    """Return everything but the inside of the picture, as bits."""
    outside = np.ones((side + 2 * guard, side + 2 * guard), bool)
    first, last = guard + padding, guard + side - padding
    outside[first:last, first:last] = False
    packed = np.packbits(outside.ravel(), bitorder="little")
    return int.from_bytes(packed.tobytes(), "little")


def draw(style: Style, seed: int, index: int) -> SeparatedPicture:
    """Draw picture number `index` of a data set."""
    words = RandomNumbers(seed, index)
    label = words.below(2)
    for _ in range(PICTURE_TRIES):
        board = SeparatedBoard(style, style.margins[words.below(len(style.margins))], words)
        targets = _targets(board)
        if targets is not None:
            break
    else:
        raise ValueError(
            f"no room for two snakes of {style.contour} dashes of {style.dash} pixels in "
            f"{style.side} x {style.side} pixels after {PICTURE_TRIES} trials: lower task.contour"
        )
    distractors = [snake for _ in range(style.distractors) if (snake := _distractor(board))]
    first = words.below(2)
    last = first if label else 1 - first
    stamp, pivot = targets[first].dashes[0]
    begin = board.moved(pivot, stamp.tail)
    stamp, pivot = targets[last].dashes[-1]
    finish = board.moved(pivot, stamp.head)
    snakes = [*targets, *distractors]
    picture = SeparatedPicture(
        pixels=_ink(board, snakes, (begin, finish)),
        label=label,
        lines=_line_bits(board, snakes),
        marks=(begin, finish),
        width=board.width,
    )
    if joined(picture) != bool(label):
        raise AssertionError(f"picture {index} of seed {seed} contradicts its label {label}")
    return picture


def _targets(board: SeparatedBoard) -> list[SeparatedSnake] | None:
    """Grow the two long snakes; None where one finds no space."""
    style, words = board.style, board.words
    edge, distance = 2 * style.seed_distance, style.seed_distance
    room = max(1, style.side - 2 * edge)
    snakes: list[SeparatedSnake] = []
    for _ in range(SEED_TRIES):
        if not snakes:
            y, x = (min(edge, style.side // 2) + words.below(room) for _ in range(2))
        else:
            turn = 2 * math.pi * words.below(DEGREES) / DEGREES
            begun = board.pixel(board.moved(snakes[0].dashes[0][1], snakes[0].dashes[0][0].tail))
            y, x = (
                begun[0] + round(distance * math.sin(turn)),
                begun[1] + round(distance * math.cos(turn)),
            )
        snake = board.seed(words.below(DEGREES), y, x)
        if snake is not None and not any(other.mask & snake.mask for other in snakes):
            snakes.append(snake)
        if len(snakes) == 2:
            break
    else:
        return None
    return snakes if _grow(board, snakes) else None


def _grow(board: SeparatedBoard, snakes: list[SeparatedSnake]) -> bool:
    """Let both snakes grow to their length, in turns; False where they find no way.

    From a dead end a few dashes are taken back and other ways tried.
    """
    steps = 2 * (board.style.contour - 1)
    history: list[tuple[int, int, tuple[SeparatedSnake, SeparatedSnake]]] = []
    for _ in range(STEP_TRIES * steps):
        if len(history) == steps:
            for snake in snakes:
                board.take(snake)
            return True
        which = len(history) % 2
        before = board.taken, board.reach, (snakes[0], snakes[1])
        # The other one's last dash is not taken yet, since it itself may touch it.
        board.taken |= snakes[1 - which].mask
        longer = board.grown(snakes[which])
        if longer is not None:
            board.taken = before[0] | snakes[which].mask
            snakes[which] = longer
            history.append(before)
            continue
        if not history:
            return False
        for _ in range(min(len(history), 1 + board.words.below(STEPS_BACK))):
            before = history.pop()
        board.taken, board.reach, snakes[:] = before
    return False


def _distractor(board: SeparatedBoard) -> SeparatedSnake | None:
    """Strew in a short snake; None where it does not fit."""
    style, words = board.style, board.words
    for _ in range(SNAKE_TRIES):
        taken, reach = board.taken, board.reach
        snake: SeparatedSnake | None = None
        for _ in range(SEED_TRIES):
            start = words.below(DEGREES), words.below(style.side), words.below(style.side)
            if snake := board.seed(*start):
                break
        for _ in range(style.distractor - 1):
            snake = board.grown(snake) if snake else None
        if snake:
            board.take(snake)
            return snake
        board.taken, board.reach = taken, reach
    return None


def _ink(
    board: SeparatedBoard, snakes: list[SeparatedSnake], marks: tuple[int, int]
) -> UInt8[np.ndarray, "s s"]:
    """Draw the dashes and the discs; the brightest pixel becomes 255."""
    side, guard = board.style.side, board.guard
    canvas = np.zeros((board.width, board.width), np.float32)
    for snake in snakes:
        for stamp, pivot in snake.dashes:
            y, x = divmod(pivot - board.corner, board.width)
            window = canvas[y : y + len(stamp.ink), x : x + len(stamp.ink)]
            np.maximum(window, stamp.ink, out=window)
    canvas *= board.style.contrast
    mark = disc(board.style.marker_radius)
    half = len(mark) // 2
    for bit in marks:
        y, x = divmod(bit, board.width)
        window = canvas[y - half : y + half + 1, x - half : x + half + 1]
        np.maximum(window, mark, out=window)
    canvas = canvas[guard : guard + side, guard : guard + side]
    pixels: UInt8[np.ndarray, "s s"] = (canvas * (255 / canvas.max()) + 0.5).astype(np.uint8)
    return pixels


def _line_bits(board: SeparatedBoard, snakes: list[SeparatedSnake]) -> int:
    lines = 0
    for snake in snakes:
        for stamp, pivot in snake.dashes:
            lines |= stamp.line << (pivot - board.corner)
    return lines


def joined(picture: SeparatedPicture) -> bool:
    """Search a path along the middle lines from one marked pixel to the other."""
    begin, finish = (1 << bit for bit in picture.marks)
    reached, width = begin & picture.lines, picture.width
    while not reached & finish:
        wide = reached | reached << 1 | reached >> 1
        wider = (wide | wide << width | wide >> width) & picture.lines
        if wider == reached:
            return False
        reached = wider
    return True
