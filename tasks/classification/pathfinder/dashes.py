"""What a dash of a snake looks like in every direction: its ink, and the space that it takes.

Space is kept as bits of whole numbers: pixel (y, x) of a picture is bit y W + x, W being the width
with a border on either side that is never free. Laying a stamp somewhere is then a shift, asking
whether the space is free an `and`: some tens of nanoseconds each, for any size of picture.

A dash belongs to a pivot: it begins `margin` pixels away from it, is `dash` pixels long, and
`margin` pixels behind its end lies the pivot of the next one. Around it `margin` pixels are taken.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32

FINE = 8
"""Points along a pixel's side at which coverage is measured."""
DEGREES = 360
WEIGHT_ONE = 1 << 24
"""Weights are whole numbers: the same on every machine."""
TAKEN = 0.5
"""Coverage from which a pixel is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StampShape:
    """What decides the stamps."""

    side: int
    dash: int
    thickness: float
    margin: int
    continuity: float

    @property
    def radius(self) -> int:
        """Pixels from the pivot that a stamp can reach, its reach included."""
        return self.dash + 3 * self.margin + math.ceil(self.thickness) + 2

    @property
    def guard(self) -> int:
        """Pixels of the border: a pivot may lie a margin outside, its stamp a radius further."""
        return self.radius + self.margin + 2

    @property
    def width(self) -> int:
        """Pixels of a row of bits."""
        return self.side + 2 * self.guard


class Stamp(NamedTuple):
    """One direction. Bits are relative to the pixel `radius` up and left of the pivot."""

    ink: Float32[np.ndarray, "r r"]
    """Coverage of the pixels around the pivot."""
    mask: int
    """Pixels that the dash takes."""
    reach: int
    """Pixels nearer than the margin to these: no dash may end there."""
    line: int
    """The middle line from this pivot to the next."""
    tail: tuple[int, int]
    """Where the dash begins, relative to the pivot: rows down, columns right."""
    head: tuple[int, int]
    """Where it ends."""
    end: tuple[int, int]
    """The next pivot."""


class Stamps(NamedTuple):
    """All stamps of one kind of dash."""

    kind: StampShape
    seeds: list[Stamp]
    """By degree: the first dash of a snake."""
    ways: list[Stamp]
    """The dashes that may follow; their heads lie on a circle around the pivot."""
    after_seed: list[list[tuple[int, int]]]
    """By degree of the first dash: which ways may follow, with their weights."""
    after_way: list[list[tuple[int, int]]]
    """By way, the same."""


@cache
def stamps(kind: StampShape) -> Stamps:
    """Return the stamps of a kind of dash."""
    turns = [2 * math.pi * degree / DEGREES for degree in range(DEGREES)]
    heads = sorted(set(_circle(kind.dash + kind.margin)))
    angles = [math.atan2(down, right) for down, right in heads]
    ways = [_stamp(kind, angle, head) for angle, head in zip(angles, heads, strict=True)]
    return Stamps(
        kind=kind,
        seeds=[_stamp(kind, turn) for turn in turns],
        ways=ways,
        after_seed=[_followers(turn, angles, kind.continuity) for turn in turns],
        after_way=[_followers(angle, angles, kind.continuity) for angle in angles],
    )


def _circle(radius: int) -> Iterator[tuple[int, int]]:
    """Yield the pixels nearest to a circle, a pixel's arc apart."""
    steps = math.ceil(2 * math.pi * radius)
    for step in range(steps):
        turn = 2 * math.pi * step / steps
        yield round(radius * math.sin(turn)), round(radius * math.cos(turn))


def _followers(last: float, angles: list[float], continuity: float) -> list[tuple[int, int]]:
    """Return which directions may follow one, with weights: cos² of the turn times `continuity`."""
    followers = []
    for way, angle in enumerate(angles):
        turn = abs(math.remainder(angle - last, 2 * math.pi))
        bent = min(continuity * turn, math.pi / 2)
        weight = round(math.cos(bent) ** 2 * WEIGHT_ONE)
        if weight:
            followers.append((way, weight))
    return followers


def _stamp(kind: StampShape, turn: float, head: tuple[int, int] | None = None) -> Stamp:
    down, right = math.sin(turn), math.cos(turn)
    start, stop = float(kind.margin), float(kind.margin + kind.dash)

    def pixel(distance: float) -> tuple[int, int]:
        return round(distance * down), round(distance * right)

    ink = coverage(kind.radius, down, right, (start, stop), kind.thickness / 2, round_ends=False)
    around = coverage(
        kind.radius, down, right, (start, stop), kind.margin + kind.thickness / 2, round_ends=True
    )
    points = (0, 0), pixel(start), head or pixel(stop), pixel(stop + kind.margin)
    line = np.zeros_like(around, dtype=bool)
    for first, last in pairwise(points):
        _draw_line(line, first, last)
    # Beside the line on all four sides: lines of masks that do not meet are then apart.
    taken = (around > TAKEN) | line | _shifted(line)
    return Stamp(
        ink=ink,
        mask=bits(taken, kind.width),
        reach=bits(_dilated(taken, kind.margin), kind.width),
        line=bits(line, kind.width),
        tail=points[1],
        head=points[2],
        end=points[3],
    )


def coverage(
    radius: int,
    down: float,
    right: float,
    span: tuple[float, float],
    half: float,
    *,
    round_ends: bool,
) -> Float32[np.ndarray, "r r"]:
    """Return how much of each pixel lies within `half` of the line from the middle.

    Args:
        radius: Pixels on each side of the middle one.
        down: Direction, down.
        right: Direction, to the right.
        span: Where along the direction the line begins and ends.
        half: Half its thickness.
        round_ends: Whether its ends are half discs, or cut.
    """
    size = 2 * radius + 1
    points = (np.arange(size * FINE) + 0.5) / FINE - 0.5 - radius
    y, x = points[:, None], points[None, :]
    along, across = y * down + x * right, y * right - x * down
    beyond = np.maximum(np.maximum(span[0] - along, along - span[1]), 0.0)
    inside = across**2 + beyond**2 <= half**2 if round_ends else (beyond == 0) & (
        np.abs(across) <= half
    )  # fmt: skip
    shares: Float32[np.ndarray, "r r"] = (
        inside.reshape(size, FINE, size, FINE).mean((1, 3)).astype(np.float32)
    )
    return shares


def disc(radius: float) -> Float32[np.ndarray, "r r"]:
    """Return the coverage of a disc around the middle pixel."""
    return coverage(math.ceil(radius) + 1, 0.0, 1.0, (0.0, 0.0), radius, round_ends=True)


def _draw_line(
    drawn: Bool[np.ndarray, "r r"], first: tuple[int, int], last: tuple[int, int]
) -> None:
    """Draw the pixels from one to another, counted from the middle, each beside the one before."""
    middle = len(drawn) // 2
    steps = max(abs(last[0] - first[0]), abs(last[1] - first[1]), 1)
    for step in range(steps + 1):
        y = first[0] + round((last[0] - first[0]) * step / steps)
        x = first[1] + round((last[1] - first[1]) * step / steps)
        drawn[middle + y, middle + x] = True


def _shifted(drawn: Bool[np.ndarray, "r r"]) -> Bool[np.ndarray, "r r"]:
    """Return the pixels above, below, left and right of those that are drawn."""
    around = np.zeros_like(drawn)
    around[1:] |= drawn[:-1]
    around[:-1] |= drawn[1:]
    around[:, 1:] |= drawn[:, :-1]
    around[:, :-1] |= drawn[:, 1:]
    return around


def _dilated(drawn: Bool[np.ndarray, "r r"], margin: int) -> Bool[np.ndarray, "r r"]:
    """Return the pixels no further than `margin` from those that are drawn."""
    size = len(drawn)
    around = np.zeros_like(drawn)
    for y in range(-margin, margin + 1):
        for x in range(-margin, margin + 1):
            if y * y + x * x <= margin * margin:
                target = (slice(max(0, y), size + min(0, y)), slice(max(0, x), size + min(0, x)))
                source = (slice(max(0, -y), size - max(0, y)), slice(max(0, -x), size - max(0, x)))
                around[target] |= drawn[source]
    return around


def bits(drawn: Bool[np.ndarray, "r c"], width: int) -> int:
    """Return pixels as bits, rows being `width` bits apart."""
    total = 0
    for y, x in zip(*(axis.tolist() for axis in np.nonzero(drawn)), strict=True):
        total |= 1 << (y * width + x)
    return total
