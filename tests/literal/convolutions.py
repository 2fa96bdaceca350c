"""Convolutions as their papers write them, token by token and tap by tap."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor


def convolution(
    x: Float[Tensor, "b h l v"], weight: Float[Tensor, "b h l t"], left: int
) -> Float[Tensor, "b h l v"]:
    """y_i = sum_t w_i,t x_(i + t - left), with x = 0 outside the sequence."""
    length = x.shape[2]
    outputs = []
    for i in range(length):
        y = torch.zeros_like(x[:, :, 0])
        for tap in range(weight.shape[-1]):
            j = i + tap - left
            if 0 <= j < length:
                y = y + weight[:, :, i, tap, None] * x[:, :, j]
        outputs.append(y)
    return torch.stack(outputs, dim=2)


def long_convolution(
    u: Float[Tensor, "*b d l"],
    kernel: Float[Tensor, "d l"],
    backward_kernel: Float[Tensor, "d l"] | None = None,
) -> Float[Tensor, "*b d l"]:
    """y_t = sum_{j <= t} K_{t-j} u_j, and sum_{j > t} K'_{j-t-1} u_j besides."""
    length, outputs = u.shape[-1], []
    for t in range(length):
        y = torch.zeros_like(u[..., 0])
        for j in range(length):
            if j <= t:
                y = y + kernel[:, t - j] * u[..., j]
            elif backward_kernel is not None:
                y = y + backward_kernel[:, j - t - 1] * u[..., j]
        outputs.append(y)
    return torch.stack(outputs, dim=-1)


def piecewise(
    parts: Float[Tensor, "s c d k"], scale: Float[Tensor, "s d"], first: int = 1
) -> Float[Tensor, "c d n"]:
    """Pieces behind each other, each lag on the line between its two nearest parameters."""
    lags, (_, _, _, count) = [], parts.shape
    for piece in range(len(parts)):
        times = first * 2 ** max(0, piece - 1)
        for lag in range(times * count):
            place = min(max((lag + 0.5) / times - 0.5, 0.0), count - 1)
            left = min(int(place), max(count - 2, 0))
            right = min(left + 1, count - 1)
            value = (1 - (place - left)) * parts[piece, ..., left]
            lags.append(scale[piece] * (value + (place - left) * parts[piece, ..., right]))
    return torch.stack(lags, dim=-1)


def short_convolution(
    x: Float[Tensor, "b l d"],
    weight: Float[Tensor, "d k"],
    bias: Float[Tensor, " d"] | None = None,
    document: Int[Tensor, "b l"] | None = None,
    spacing: int = 1,
) -> Float[Tensor, "b l d"]:
    """y_t = sum_j w_(k-1-j) x_(t - s j) + b, of the same document."""
    outputs, taps = [], weight.shape[1]
    for t in range(x.shape[1]):
        y = torch.zeros_like(x[:, 0]) if bias is None else bias.expand(len(x), -1)
        for back in range(taps):
            there = t - spacing * back
            if there < 0:
                continue
            product = weight[:, taps - 1 - back] * x[:, there]
            if document is not None:
                product = product * (document[:, there] == document[:, t])[:, None]
            y = y + product
        outputs.append(y)
    return torch.stack(outputs, dim=1)


def implicit(
    positions: Float[Tensor, "n e"],
    layers: Sequence[tuple[Tensor, Tensor]],
    frequency: Float[Tensor, " w"],
    last: Float[Tensor, "d w"],
    decay: tuple[Float[Tensor, " d"], float],
) -> Float[Tensor, "d n"]:
    """h_t = (W s(W_i ... s(W_0 z_t))) (exp(-|delta| t / (n - 1)) + shift), s(y) = sin(a y).

    Args:
        positions: z.
        layers: W_i and their biases.
        frequency: a.
        last: W.
        decay: delta and shift.
    """
    lags, (rates, shift) = [], decay
    for t, units in enumerate(positions.unbind()):
        seen = units
        for weight, bias in layers:
            seen = torch.sin(frequency * (weight @ seen + bias))
        lag = t / max(1, len(positions) - 1)
        lags.append((last @ seen) * (torch.exp(-rates.abs() * lag) + shift))
    return torch.stack(lags, dim=-1)


def implicit_positions(longest: int, bands: int) -> Float[Tensor, "n e"]:
    """[t / (n - 1), cos(2 pi f t / n) ..., -sin(2 pi f t / n) ...] for every f."""
    frequencies = [1e-4 + (bands - 1 - 1e-4) * band / max(1, bands - 1) for band in range(bands)]
    rows = []
    for t in range(longest):
        angles = [2 * math.pi * f * t / longest for f in frequencies]
        row = [t / max(1, longest - 1), *map(math.cos, angles), *(-math.sin(a) for a in angles)]
        rows.append(torch.tensor(row, dtype=torch.float64))
    return torch.stack(rows)


def dilated_tree(
    x: Float[Tensor, "b l d"],
    low: Float[Tensor, "d k"],
    high: Float[Tensor, "d k"],
    weights: Float[Tensor, "d w"],
    document: Int[Tensor, "b l"] | None = None,
) -> Float[Tensor, "b l d"]:
    """Y = sum_i w_i hi_i + w_(J+1) lo_J + w_(J+2) x, level by level, token by token."""
    depth = weights.shape[1] - 2
    y, seen = weights[:, -1] * x, x
    for level in range(depth):
        y = y + weights[:, level] * short_convolution(seen, high, None, document, 2**level)
        seen = short_convolution(seen, low, None, document, 2**level)
    return y + weights[:, depth] * seen
