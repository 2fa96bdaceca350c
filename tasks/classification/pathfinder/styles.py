"""The published parameters of Pathfinder's pictures, and the random words that a picture draws."""

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
    """Space around a dash; one is drawn for each picture."""
    seed_distance: int
    marker_radius: float
    contour: int
    """Dashes of a long snake."""
    dash: int
    thickness: float
    continuity: float
    distractor: int
    """Dashes of a short snake."""
    distractors: int
    contrast: float
    """Of the dashes of long snakes; discs have 1, and the brightest pixel becomes 255."""
    distractor_contrast: float
    """Of the dashes of short snakes."""


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
"""By side: the published parameters of the hard sets."""


class RandomNumbers:
    """Whole numbers drawn one after another."""

    def __init__(self, seed: int, index: int) -> None:
        sequence = np.random.SeedSequence((int(Draw.pictures), seed, index))
        self.source = np.random.PCG64(sequence)
        self.words = self.stream()

    def stream(self) -> Iterator[int]:
        """Yield 64-bit words."""
        while True:
            yield from self.source.random_raw(WORDS_AT_ONCE).tolist()

    def below(self, bound: int) -> int:
        """Return a number from 0 to bound - 1."""
        return next(self.words) * bound >> 64
