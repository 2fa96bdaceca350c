"""Gray levels of the published pictures: drawn at double resolution, then resampled by Lanczos.

Levels are bytes, and the weights of the resampling are whole numbers in units of 2^-22, as in image
libraries. So every machine computes the same levels.
"""

import math
from collections.abc import Iterator
from functools import cache

import numpy as np
from jaxtyping import Bool, Int64, UInt8

FINE = 2
"""Number of points along each side of a pixel before the resampling; `antialias_scale` in the
published code."""
LOBES = 3
"""Number of lobes of Lanczos' window on each side, which is its reach in pixels."""
BITS = 22
"""A weight is a whole number in units of 2^-22."""


@cache
def resampling_weights(points: int, pixels: int) -> Int64[np.ndarray, "pixels points"]:
    """Return how much each point adds to each pixel of a row; the weights of a pixel sum to 2^22.

    The row has `points` points before the resampling, and `pixels` pixels after it.
    """
    step = points / pixels
    matrix = np.zeros((pixels, points), np.int64)
    for pixel in range(pixels):
        middle = (pixel + 0.5) * step
        first = max(0, int(middle - LOBES * step + 0.5))
        last = min(points, int(middle + LOBES * step + 0.5))
        distance = (np.arange(first, last) + 0.5 - middle) / step  # in pixels
        lanczos = np.sinc(distance) * np.sinc(distance / LOBES)
        weights = np.where(np.abs(distance) < LOBES, lanczos, 0.0)
        scaled = weights / weights.sum() * (1 << BITS)
        matrix[pixel, first:last] = np.trunc(scaled + np.copysign(0.5, scaled)).astype(np.int64)
    return matrix


def resample(
    down: Int64[np.ndarray, "r fine_rows"],
    points: UInt8[np.ndarray, "fine_rows fine_columns"],
    across: Int64[np.ndarray, "c fine_columns"],
) -> UInt8[np.ndarray, "r c"]:
    """Return the pixels of a grid of points, resampled along rows and then along columns.

    Levels are rounded to bytes after each of the two steps, as image libraries do.

    Args:
        down: Weights of the points of a column in each pixel (see `resampling_weights`).
        points: Levels of the points.
        across: Weights of the points of a row in each pixel.
    """
    return _byte_levels(down @ _byte_levels(points.astype(np.int64) @ across.T).astype(np.int64))


def _byte_levels(sums: Int64[np.ndarray, "r c"]) -> UInt8[np.ndarray, "r c"]:
    """Divide sums of weighted levels by 2^22, round, and clip to 0 ... 255."""
    levels: UInt8[np.ndarray, "r c"] = ((sums + (1 << BITS - 1)) >> BITS).clip(0, 255).astype("u1")
    return levels


def dash(
    turn: float, length: int, thickness: float, margin: int
) -> tuple[UInt8[np.ndarray, "n n"], UInt8[np.ndarray, "n n"]]:
    """Return two square pictures: a dash from the middle pixel, and the space that it takes.

    Args:
        turn: Direction in radians, clockwise from the right.
        length: Length of the dash in pixels.
        thickness: Thickness of the dash in pixels.
        margin: Width in pixels of the space around the dash.
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
    """Round up to a whole number, but down if `value` exceeds one by a rounding error only."""
    return math.ceil(value - 1e-9)


def stroke(end: tuple[int, int], width: int) -> Iterator[tuple[int, int]]:
    """Yield the points of a straight stroke from (0, 0) to `end`, `width` points wide.

    Rounds as the published code's image library does, pixel for pixel.
    """
    down, right = end
    if width == 1:
        steps = max(abs(down), abs(right))
        for step in range(steps + 1):
            yield _rounded_part(down, step, steps), _rounded_part(right, step, steps)
        return
    long, half = math.hypot(down, right), (width - 1) / 2
    narrow, wide = math.ceil(half - 0.5) / long, math.floor(half + 0.5) / long
    corners = [
        (y + _round_away(wide * right) if side else y - _round_away(narrow * right),
         x - _round_inward(narrow * down) if side else x + _round_inward(wide * down))
        for (y, x), side in (((0, 0), 1), (end, 1), (end, 0), ((0, 0), 0))
    ]  # fmt: skip
    yield from _fill_polygon(corners)


def _rounded_part(distance: int, step: int, steps: int) -> int:
    """Return `distance` x step / steps, rounded, halves away from 0."""
    size = (2 * abs(distance) * step + steps) // (2 * steps) if steps else 0
    return size if distance > 0 else -size


def _round_away(value: float) -> int:
    """Round to the nearest whole number; round halves away from 0."""
    return int(math.copysign(math.floor(abs(value) + 0.5), value))


def _round_inward(value: float) -> int:
    """Round to the nearest whole number; round halves towards 0."""
    return int(math.copysign(math.ceil(abs(value) - 0.5), value))


def _fill_polygon(corners: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the points (row, column) of a convex polygon, including its edges."""
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
    """Return which points are at most `radius` away from a point that is set."""
    return grey_dilation(points, radius)


def grey_dilation(points: np.ndarray, radius: int) -> np.ndarray:
    """Return, for each point, the largest value among the points at most `radius` away."""
    rows, columns = points.shape
    largest = np.zeros_like(points)
    for y in range(-radius, radius + 1):
        for x in range(-radius, radius + 1):
            if y * y + x * x <= radius * radius:  # compare with the points shifted by (y, x)
                target = slice(max(0, y), rows + min(0, y)), slice(max(0, x), columns + min(0, x))
                source = slice(max(0, -y), rows - max(0, y)), slice(max(0, -x), columns - max(0, x))
                np.maximum(largest[target], points[source], out=largest[target])
    return largest


def disc(
    centre: tuple[int, int], radius: float, side: int
) -> tuple[tuple[slice, slice], UInt8[np.ndarray, "r c"]]:
    """Return the rows and columns of a picture that a white disc covers, and its levels there.

    As in the published pictures, the middle of the disc is a quarter of a pixel up and left of the
    middle of the pixel `centre`.

    Args:
        centre: Row and column of a pixel.
        radius: Radius of the disc in pixels.
        side: Side of the square picture in pixels; its edges cut the disc off.
    """
    half = math.ceil(radius)
    reach = half + LOBES + 1  # resampling spreads a disc over this many pixels on each side
    weights = resampling_weights(side * FINE, side)
    spans, axes = [], []
    for middle in centre:  # the rows, then the columns
        pixels = slice(max(0, middle - reach), min(side, middle + reach + 1))
        points = slice(max(0, FINE * (middle - half)), FINE * (middle + half + 1))
        spans.append(pixels)
        axes.append((np.arange(side * FINE)[points] - FINE * middle, weights[pixels, points]))
    (y, down), (x, across) = axes
    inside = y[:, None] ** 2 + x[None, :] ** 2 <= (radius * FINE) ** 2
    return (spans[0], spans[1]), resample(down, 255 * inside.astype(np.uint8), across)
