"""Windows over a stream of tokens: what is read at once, and which predictions count.

A window (start, length, scored) reads the tokens start … start + length - 1 and predicts each one's
successor; the last `scored` predictions count. The first token of a stream is never predicted.

    non-overlapping   |----s----|----s----|--s--|       early predictions see little
    sliding           |----s----|                       every later prediction sees at least
                         |------|-s-|                   length - stride tokens
    memory            |----s----|----s----|--s--|       the same cuts, with a state carried over

Training windows cover an epoch once: shuffled, from an offset that the seed draws, or in lanes, one
for each row of a batch, where a row goes on from batch to batch. Windows of lanes may have lengths
that are drawn, one for all rows of a batch (AWD-LSTM, arXiv:1708.02182, section 5).
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from lra.tasks.data.batching import Draw, permutation, random_words


class Windows(NamedTuple):
    """Some windows of one stream."""

    starts: Int[np.ndarray, " w"]
    lengths: Int[np.ndarray, " w"]
    scored: Int[np.ndarray, " w"]


def evaluation_windows(tokens: int, *, length: int, stride: int) -> Windows:
    """Return windows over a stream that together score every token but the first exactly once.

    Windows overlap if `stride` is less than `length`; a token is scored by the first that reads it.

    Args:
        tokens: How many tokens the stream has.
        length: How many predictions a window makes at most.
        stride: How many tokens the end of a window lies after the end of the one before. If it
            equals `length`, windows do not overlap, and the last one may be shorter.
    """
    predictions = tokens - 1
    ends = np.minimum(np.arange(length, predictions + stride, stride, dtype=np.int64), predictions)
    if predictions <= length:
        ends = np.array([predictions], np.int64)
    scored = np.diff(ends, prepend=0)
    lengths = scored if stride == length else np.minimum(length, ends)
    return Windows(ends - lengths, lengths, scored)


class VariedLengths(NamedTuple):
    """How lengths of windows are drawn, from normal distributions of one deviation."""

    deviation: float
    """In tokens."""
    halved: float
    """Share of the windows whose mean is half of the usual length."""
    longest: int
    """Tokens that a window has at most."""


LEAST_DRAWN = 5
"""Tokens that a drawn window has at least, as in the code of AWD-LSTM."""


def drawn_lengths(
    tokens: int, *, length: int, varied: VariedLengths, seed: int
) -> Int[np.ndarray, " s"]:
    """Return lengths of windows, one after the other, as many as `tokens` predictions fill.

    Args:
        tokens: Predictions of one lane.
        length: The usual mean.
        varied: How lengths are drawn.
        seed: Of the draws.
    """
    least = min(LEAST_DRAWN, length)
    words = random_words(Draw.lengths, seed, 3 * (tokens // least))
    half, radius, angle = ((words >> np.uint64(11)) * 2.0**-53).reshape(3, -1)
    normal = np.sqrt(-2 * np.log1p(-radius)) * np.cos(2 * np.pi * angle)
    mean = np.where(half < varied.halved, length / 2, length)
    drawn = np.clip((mean + varied.deviation * normal).astype(np.int64), least, varied.longest)
    lengths: Int[np.ndarray, " s"] = drawn[np.cumsum(drawn) <= tokens]
    return lengths


def drawn_offset(spare: int, *, length: int, seed: int) -> int:
    """Return where an epoch begins: below `length`, and within what can be spared."""
    return int(random_words(Draw.offset, seed, 1)[0] % np.uint64(max(1, min(length, spare))))


def shuffled_windows(tokens: int, *, length: int, seed: int) -> Windows:
    """Return one epoch of whole training windows in random order, from a random offset on."""
    offset = drawn_offset(tokens - length, length=length, seed=seed)
    number = (tokens - 1 - offset) // length
    starts = offset + length * permutation(Draw.order, seed, number)
    lengths = np.full(number, length, np.int64)
    return Windows(starts, lengths, lengths)


def varied_lanes(
    tokens: int, *, length: int, rows: int, varied: VariedLengths, seed: int
) -> Windows:
    """Return `lanes` of whole windows whose lengths are drawn, the same for all rows of a batch."""
    each = (tokens - 1) // rows
    drawn = drawn_lengths(each, length=length, varied=varied, seed=seed)
    offset = drawn_offset(each - int(drawn.sum()), length=length, seed=seed)
    edges = np.arange(rows, dtype=np.int64) * each + offset
    starts = (edges + (np.cumsum(drawn) - drawn)[:, None]).ravel()
    lengths = np.repeat(drawn, rows)
    return Windows(starts, lengths, lengths)


def lanes(tokens: int, *, length: int, rows: int, whole: bool, seed: int = 0) -> Windows:
    """Return the windows of `rows` parallel streams, batch after batch: row r of every batch.

    Args:
        tokens: Of the stream that is cut into lanes.
        length: Of a window.
        rows: Lanes; row r of each batch goes on where row r of the last one ended.
        whole: Leave out what is no whole window, and begin at an offset that the seed draws
            (training), or read everything to the end (evaluation).
        seed: Of the offset.
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
    lengths = np.clip(ends - starts, 0, length)
    return Windows(starts, lengths, lengths)
