"""The input of baselines: the tokens that a model reads, recovered from its batches.

A baseline that read the stored rows by itself could see more than a model does, which gets them
cut, and with some positions masked. So a task hands its baselines this view, whose rows come out of
the very function that fills its batches.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Integer, UInt8

AT_ONCE = 64
"""Examples that are read together, at most."""


class RealTokens(NamedTuple):
    """Tokens without padding, of several sequences one after another."""

    tokens: Int[np.ndarray, " t"]
    """As stored: bytes, levels or ids of the task."""
    row: Int[np.ndarray, " t"]
    """The sequence that each one lies in, from 0; an example of p parts has p of them."""
    position: Int[np.ndarray, " t"]
    """Its position there. Positions may be left out: what stands on both sides is not adjacent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenExamples:
    """The examples of a split as a model reads them."""

    targets: Integer[np.ndarray, " n"]
    lengths: Int[np.ndarray, " n"]
    """Tokens of every example's longest sequence."""
    parts: int
    """Sequences of one example."""
    read: Callable[[Int[np.ndarray, " b"]], RealTokens]
    """Return some examples, which are in memory together."""

    def rows(self, examples: Int[np.ndarray, " m"]) -> Iterator[Int[np.ndarray, " _"]]:
        """Yield the tokens of each sequence of some examples."""
        for first in range(0, len(examples), AT_ONCE):
            some = examples[first : first + AT_ONCE]
            real = self.read(some)
            ends = np.cumsum(np.bincount(real.row, minlength=len(some) * self.parts))
            yield from np.split(real.tokens, ends[:-1])


class Pictures(NamedTuple):
    """Pictures as a model reads them, and their classes."""

    targets: Int[np.ndarray, " n"]
    read: Callable[[Int[np.ndarray, " b"]], UInt8[np.ndarray, "b s s"]]
    """Return some of them, which are in memory together."""


def real_tokens(
    tokens: Integer[np.ndarray, "s l"], keep: Bool[np.ndarray, "s l"] | None
) -> RealTokens:
    """Return the tokens of padded sequences where `keep` says so; None: all."""
    if keep is None:
        keep = np.ones(tokens.shape, bool)
    row, position = np.nonzero(keep)
    return RealTokens(tokens[keep].astype(np.int64), row, position)
