"""The published parameters of Pathfinder's pictures, and the random numbers of a picture."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lra.tasks.data.batching import Draw

WORDS_AT_ONCE = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """Parameters of the pictures; lengths in pixels."""

    side: int
    padding: int
    margins: tuple[int, ...]
    """Possible widths of the space around a dash; one is drawn for each picture."""
    seed_distance: int
    """Distance between the beginnings of the two long snakes."""
    marker_radius: float
    contour: int
    """Number of dashes of a long snake."""
    dash: int
    """Length of a dash."""
    thickness: float
    continuity: float
    """Factor of the turns between dashes: a larger one makes snakes straighter."""
    distractor: int
    """Number of dashes of a short snake."""
    distractors: int
    """Number of short snakes."""
    contrast: float
    """Brightness of long snakes relative to the discs; the brightest pixel becomes 255."""
    distractor_contrast: float
    """Brightness of short snakes relative to the discs."""


STYLES = {
    32: Style(
        side=32, padding=1, margins=(1,), seed_distance=7, marker_radius=1.5, contour=14, dash=2,
        thickness=0.5, continuity=1.0, distractor=4, distractors=5, contrast=1.5,
        distractor_contrast=2.0,
    ),
    64: Style(
        side=64, padding=1, margins=(1,), seed_distance=12, marker_radius=2.5, contour=14, dash=5,
        thickness=1.0, continuity=1.8, distractor=4, distractors=5, contrast=0.8,
        distractor_contrast=0.8,
    ),
    128: Style(
        side=128, padding=1, margins=(2, 3), seed_distance=20, marker_radius=3.0, contour=14,
        dash=5, thickness=1.5, continuity=1.8, distractor=4, distractors=8, contrast=0.9,
        distractor_contrast=0.9,
    ),
    256: Style(
        side=256, padding=22, margins=(3,), seed_distance=27, marker_radius=5.0, contour=14,
        dash=5, thickness=2.0, continuity=1.8, distractor=4, distractors=7, contrast=1.0,
        distractor_contrast=1.0,
    ),
}  # fmt: skip
"""Published parameters of the hard set of each side."""


class RandomNumbers:
    """Random whole numbers for picture number `index` of a data set with this seed."""

    def __init__(self, seed: int, index: int) -> None:
        sequence = np.random.SeedSequence((int(Draw.pictures), seed, index))
        self.source = np.random.PCG64(sequence)
        self.words = self.stream()

    def stream(self) -> Iterator[int]:
        """Yield random 64-bit words."""
        while True:
            yield from self.source.random_raw(WORDS_AT_ONCE).tolist()

    def below(self, bound: int) -> int:
        """Return a random number from 0 to bound - 1: a fraction (word / 2^64) of `bound`."""
        return next(self.words) * bound >> 64
