"""Windows over a stream of tokens: what is read at once, and which predictions count.

A window (start, length, scored) reads the tokens start … start + length - 1 and predicts each one's
successor; the last `scored` predictions count. The first token of a stream is never predicted.

    non-overlapping   |----s----|----s----|--s--|       early predictions see little
    sliding           |----s----|                       every later prediction sees at least
                         |------|-s-|                   length - stride tokens
    memory            |----s----|----s----|--s--|       the same cuts, with a state carried over

Training windows cover an epoch once: shuffled, from an offset that the seed draws, or in lanes, one
for each row of a batch, where a row goes on from batch to batch.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from tasks.data.batching import Draw, permutation, random_words


class Windows(NamedTuple):
    """Some windows of one stream."""

    starts: Int[np.ndarray, " w"]
    lengths: Int[np.ndarray, " w"]
    scored: Int[np.ndarray, " w"]


def evaluation_windows(tokens: int, *, length: int, stride: int) -> Windows:
    """Return the windows that predict each token of a stream but the first exactly once.

    Args:
        tokens: Of the stream.
        length: Of a window.
        stride: From one window's end to the next; `length`: the windows do not overlap.
    """
    predictions = tokens - 1
    ends = np.minimum(np.arange(length, predictions + stride, stride, dtype=np.int64), predictions)
    if predictions <= length:
        ends = np.array([predictions], np.int64)
    scored = np.diff(ends, prepend=0)
    lengths = scored if stride == length else np.minimum(length, ends)
    return Windows(ends - lengths, lengths, scored)


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
