"""The input of baselines: the tokens that a model reads, recovered from its batches.

Models read stored rows cut to a length, and with some positions masked. A baseline that read the
stored rows would get more than a model. So baselines read them through the classes of this module,
which use the function that fills the batches of models.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Integer, UInt8

AT_ONCE = 64
"""Most examples that are read together."""


class RealTokens(NamedTuple):
    """The tokens of several sequences one after another, without padding."""

    tokens: Int[np.ndarray, " t"]
    """Tokens as stored: bytes, gray levels or ids of the task."""
    row: Int[np.ndarray, " t"]
    """Number of each token's sequence, from 0; an example of p parts has p sequences."""
    position: Int[np.ndarray, " t"]
    """Position of each token in its sequence. Tokens on both sides of a masked position are not
    neighbours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenExamples:
    """The examples of a split as a model reads them."""

    targets: Integer[np.ndarray, " n"]
    lengths: Int[np.ndarray, " n"]
    """Number of tokens in the longest sequence of each example."""
    parts: int
    """Number of sequences in one example."""
    read: Callable[[Int[np.ndarray, " b"]], RealTokens]
    """Returns the tokens of the examples with these numbers, all in memory together."""

    def rows(self, examples: Int[np.ndarray, " m"]) -> Iterator[Int[np.ndarray, " _"]]:
        """Yield the tokens of each sequence of `examples`, one array for each sequence."""
        for first in range(0, len(examples), AT_ONCE):
            group = examples[first : first + AT_ONCE]
            real = self.read(group)
            ends = np.cumsum(np.bincount(real.row, minlength=len(group) * self.parts))
            yield from np.split(real.tokens, ends[:-1])


class Pictures(NamedTuple):
    """Pictures as a model reads them, and their classes."""

    targets: Int[np.ndarray, " n"]
    read: Callable[[Int[np.ndarray, " b"]], UInt8[np.ndarray, "b s s"]]
    """Returns the gray levels of the pictures with these numbers, all in memory together."""


def real_tokens(
    tokens: Integer[np.ndarray, "s l"], keep: Bool[np.ndarray, "s l"] | None
) -> RealTokens:
    """Return the tokens of padded sequences at which `keep` is True; None: all tokens."""
    if keep is None:
        keep = np.ones(tokens.shape, bool)
    row, position = np.nonzero(keep)
    return RealTokens(tokens[keep].astype(np.int64), row, position)
