"""Gray levels of the published pictures: drawn twice as fine, then resampled with Lanczos' window.

Levels are bytes and the weights of the resampling whole numbers of 22 bits, as image libraries
resample bytes: every machine finds the same levels.
"""

import math
from collections.abc import Iterator
from functools import cache

import numpy as np
from jaxtyping import Bool, Int64, UInt8

FINE = 2
"""Points along a pixel's side; published as `antialias_scale`."""
LOBES = 3
"""Of Lanczos' window, on each side."""
BITS = 22
"""Of the weights' fractions."""


@cache
def resampling_weights(points: int, pixels: int) -> Int64[np.ndarray, "pixels points"]:
    """Return the weight of every point in every pixel of a row, of sum 2^22."""
    step = points / pixels
    matrix = np.zeros((pixels, points), np.int64)
    for pixel in range(pixels):
        middle = (pixel + 0.5) * step
        first = max(0, int(middle - LOBES * step + 0.5))
        last = min(points, int(middle + LOBES * step + 0.5))
        at = (np.arange(first, last) + 0.5 - middle) / step
        weights = np.where(np.abs(at) < LOBES, np.sinc(at) * np.sinc(at / LOBES), 0.0)
        scaled = weights / weights.sum() * (1 << BITS)
        matrix[pixel, first:last] = np.trunc(scaled + np.copysign(0.5, scaled)).astype(np.int64)
    return matrix


def resample(
    down: Int64[np.ndarray, "r fine_rows"],
    points: UInt8[np.ndarray, "fine_rows fine_columns"],
    across: Int64[np.ndarray, "c fine_columns"],
) -> UInt8[np.ndarray, "r c"]:
    """Resample the rows of points, then their columns, each time to bytes."""
    return _byte_levels(down @ _byte_levels(points.astype(np.int64) @ across.T).astype(np.int64))


def _byte_levels(sums: Int64[np.ndarray, "r c"]) -> UInt8[np.ndarray, "r c"]:
    levels: UInt8[np.ndarray, "r c"] = ((sums + (1 << BITS - 1)) >> BITS).clip(0, 255).astype("u1")
    return levels


def dash(
    turn: float, length: int, thickness: float, margin: int
) -> tuple[UInt8[np.ndarray, "n n"], UInt8[np.ndarray, "n n"]]:
    """Return the levels of a dash that begins at the middle pixel, and of the space it takes.

    Args:
        turn: Direction in radians, 0 to the right, then downwards.
        length: Of the dash, in pixels.
        thickness: In pixels.
        margin: Pixels of space around it.
    """
    radius = length + math.ceil(thickness) + margin
    size = 2 * radius * FINE + 1
    end = rounded_up(length * FINE * math.sin(turn)), rounded_up(length * FINE * math.cos(turn))
    points = np.zeros((size, size), np.uint8)
    for y, x in stroke(end, round(thickness * FINE)):
        points[radius * FINE + y, radius * FINE + x] = 255
    weights = resampling_weights(size, 2 * radius + 1)
    around = 255 * dilate(points > 0, margin * FINE).astype(np.uint8)
    return resample(weights, points, weights), resample(weights, around, weights)


def rounded_up(value: float) -> int:
    """Return the next whole number; what is one but for rounding stays."""
    return math.ceil(value - 1e-9)


def stroke(end: tuple[int, int], width: int) -> Iterator[tuple[int, int]]:
    """Yield the points of a straight stroke from (0, 0) to `end`, `width` points wide."""
    down, right = end
    if width == 1:
        steps = max(abs(down), abs(right))
        for step in range(steps + 1):
            yield _rounded_part(down, step, steps), _rounded_part(right, step, steps)
        return
    long, half = math.hypot(down, right), (width - 1) / 2
    narrow, wide = math.ceil(half - 0.5) / long, math.floor(half + 0.5) / long
    corners = [
        (y + _away(wide * right) if side else y - _away(narrow * right),
         x - _inward(narrow * down) if side else x + _inward(wide * down))
        for (y, x), side in (((0, 0), 1), (end, 1), (end, 0), ((0, 0), 0))
    ]  # fmt: skip
    yield from _filled(corners)


def _rounded_part(distance: int, step: int, steps: int) -> int:
    """Return `distance` x step / steps, rounded, halves away from 0."""
    size = (2 * abs(distance) * step + steps) // (2 * steps) if steps else 0
    return size if distance > 0 else -size


def _away(value: float) -> int:
    """Round, halves away from 0."""
    return int(math.copysign(math.floor(abs(value) + 0.5), value))


def _inward(value: float) -> int:
    """Round, halves towards 0."""
    return int(math.copysign(math.ceil(abs(value) - 0.5), value))


def _filled(corners: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the points of a convex polygon, its edges included."""
    edges = list(zip(corners, corners[1:] + corners[:1], strict=True))
    rows = [y for y, _ in corners]
    for y in range(min(rows), max(rows) + 1):
        cuts = [float(x) for row, x in corners if row == y]
        for (y0, x0), (y1, x1) in edges:
            if min(y0, y1) < y < max(y0, y1):
                cuts.append(x0 + (y - y0) * (x1 - x0) / (y1 - y0))
        for x in range(math.floor(min(cuts) + 0.5), math.ceil(max(cuts) - 0.5) + 1):
            yield y, x


def dilate(points: Bool[np.ndarray, "r c"], radius: int) -> Bool[np.ndarray, "r c"]:
    """Return the points no further than `radius` from those that are set."""
    return grey_dilation(points, radius)


def grey_dilation(points: np.ndarray, radius: int) -> np.ndarray:
    """Return the largest value no further than `radius` from each point."""
    size, other = points.shape
    largest = np.zeros_like(points)
    for y in range(-radius, radius + 1):
        for x in range(-radius, radius + 1):
            if y * y + x * x <= radius * radius:
                to = slice(max(0, y), size + min(0, y)), slice(max(0, x), other + min(0, x))
                of = slice(max(0, -y), size - max(0, y)), slice(max(0, -x), other - max(0, x))
                np.maximum(largest[to], points[of], out=largest[to])
    return largest


def disc(
    centre: tuple[int, int], radius: float, side: int
) -> tuple[tuple[slice, slice], UInt8[np.ndarray, "r c"]]:
    """Return where in a picture a disc lies, and its levels there.

    It lies around the first of a pixel's points: a quarter of a pixel up and left of its middle.
    """
    reach = math.ceil(radius) + LOBES + 1
    weights = resampling_weights(side * FINE, side)
    parts, spans = [], []
    for at in centre:
        part = slice(max(0, at - reach), min(side, at + reach + 1))
        fine = slice(max(0, FINE * (at - math.ceil(radius))), FINE * (at + math.ceil(radius) + 1))
        parts.append(part)
        spans.append((np.arange(side * FINE)[fine] - FINE * at, weights[part, fine]))
    (y, down), (x, across) = spans
    inside = y[:, None] ** 2 + x[None, :] ** 2 <= (radius * FINE) ** 2
    return (parts[0], parts[1]), resample(down, 255 * inside.astype(np.uint8), across)
