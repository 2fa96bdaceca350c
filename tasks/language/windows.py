"""Windows of a text: the tokens that a model reads together, and the predictions that count.

A window (start, length, scored) reads the tokens start … start + length - 1 and predicts the next
token of each; the last `scored` predictions count. The first token of a text is never predicted.

    non-overlapping   |----s----|----s----|--s--|       early predictions have little context
    sliding           |----s----|                       every later prediction has a context of at
                         |------|-s-|                   least length - stride tokens
    memory            |----s----|----s----|--s--|       the same windows, with a continued state

Training windows cover the text once in an epoch. They are shuffled, from a random offset on, or
form lanes: row r of a batch continues row r of the batch before. Windows of lanes may have random
lengths, the same for all rows of a batch (AWD-LSTM, arXiv:1708.02182, section 5).
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from lra.tasks.data.batching import Draw, permutation, random_words


class Windows(NamedTuple):
    """Windows of one text: start, length and number of scored predictions of each."""

    starts: Int[np.ndarray, " w"]
    lengths: Int[np.ndarray, " w"]
    scored: Int[np.ndarray, " w"]


def evaluation_windows(tokens: int, *, length: int, stride: int) -> Windows:
    """Return windows that together score every token of a text but the first exactly once.

    If windows overlap, the first window that predicts a token scores it.

    Args:
        tokens: Number of tokens of the text.
        length: Most predictions of a window.
        stride: Number of tokens between the ends of successive windows. If it equals `length`,
            windows do not overlap, and the last one may be shorter.
    """
    predictions = tokens - 1
    # Windows end `stride` apart, the last one with the text.
    ends = np.minimum(np.arange(length, predictions + stride, stride, dtype=np.int64), predictions)
    if predictions <= length:
        ends = np.array([predictions], np.int64)
    scored = np.diff(ends, prepend=0)
    lengths = scored if stride == length else np.minimum(length, ends)
    return Windows(ends - lengths, lengths, scored)


class VariedLengths(NamedTuple):
    """How lengths of windows are drawn from normal distributions."""

    deviation: float
    """Standard deviation in tokens."""
    halved: float
    """Share of the windows with half the usual mean."""
    longest: int
    """Most tokens of a window."""


LEAST_DRAWN = 5
"""Fewest tokens of a drawn window, as in the code of AWD-LSTM."""


def drawn_lengths(
    tokens: int, *, length: int, varied: VariedLengths, seed: int
) -> Int[np.ndarray, " s"]:
    """Return random lengths of successive windows, with at most `tokens` predictions together.

    Args:
        tokens: Number of predictions of one lane.
        length: Usual mean of the lengths.
        varied: How lengths are drawn.
        seed: Seed of the draws.
    """
    least = min(LEAST_DRAWN, length)
    # Three words for each window, if all have the least length.
    words = random_words(Draw.lengths, seed, 3 * (tokens // least))
    half, radius, angle = ((words >> np.uint64(11)) * 2.0**-53).reshape(3, -1)
    normal = np.sqrt(-2 * np.log1p(-radius)) * np.cos(2 * np.pi * angle)  # Box-Muller
    mean = np.where(half < varied.halved, length / 2, length)
    drawn = np.clip((mean + varied.deviation * normal).astype(np.int64), least, varied.longest)
    lengths: Int[np.ndarray, " s"] = drawn[np.cumsum(drawn) <= tokens]
    return lengths


def drawn_offset(spare: int, *, length: int, seed: int) -> int:
    """Return the random position at which an epoch begins: below `length` and below `spare`."""
    return int(random_words(Draw.offset, seed, 1)[0] % np.uint64(max(1, min(length, spare))))


def shuffled_windows(tokens: int, *, length: int, seed: int) -> Windows:
    """Return one epoch of whole training windows in random order, after a random offset."""
    offset = drawn_offset(tokens - length, length=length, seed=seed)
    number = (tokens - 1 - offset) // length
    starts = offset + length * permutation(Draw.order, seed, number)
    lengths = np.full(number, length, np.int64)
    return Windows(starts, lengths, lengths)


def varied_lanes(
    tokens: int, *, length: int, rows: int, varied: VariedLengths, seed: int
) -> Windows:
    """Return `lanes` of whole windows with random lengths, the same for all rows of a batch."""
    per_lane = (tokens - 1) // rows
    drawn = drawn_lengths(per_lane, length=length, varied=varied, seed=seed)
    offset = drawn_offset(per_lane - int(drawn.sum()), length=length, seed=seed)
    edges = np.arange(rows, dtype=np.int64) * per_lane + offset
    starts = (edges + (np.cumsum(drawn) - drawn)[:, None]).ravel()
    lengths = np.repeat(drawn, rows)
    return Windows(starts, lengths, lengths)


def lanes(tokens: int, *, length: int, rows: int, whole: bool, seed: int = 0) -> Windows:
    """Return the windows of all batches, in which row r continues row r of the batch before.

    Args:
        tokens: Number of tokens of the text, which is cut into `rows` lanes.
        length: Number of tokens of a window.
        rows: Number of lanes, and of rows in a batch.
        whole: True skips incomplete windows and begins at a random offset (training); False reads
            the whole text (evaluation).
        seed: Seed of the offset.
    """
    predictions = tokens - 1
    if whole:
        per_lane = predictions // rows // length * length
        offset = drawn_offset(predictions // rows - per_lane, length=length, seed=seed)
        edges = np.arange(rows + 1, dtype=np.int64) * (predictions // rows) + offset
    else:
        edges = np.linspace(0, predictions, rows + 1).astype(np.int64)
        per_lane = int(np.diff(edges).max())
    steps = -(-per_lane // length)
    starts = (edges[:-1] + length * np.arange(steps, dtype=np.int64)[:, None]).ravel()
    ends = np.tile(edges[:-1] + per_lane if whole else edges[1:], steps)
    lengths = np.clip(ends - starts, 0, length)  # 0 if a lane is shorter than others
    return Windows(starts, lengths, lengths)
