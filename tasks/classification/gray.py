"""Pictures of gray levels as sequences of pixels.

    symbols   ids 1 … 256 (level + 1), without padding
    scalars   real numbers (level / 255 - mean) / deviation, which a linear map embeds

`black_is_padding` reproduces the Long Range Arena code: ids are levels without a shift, so black
has the padding id 0, and families that mask padding do not attend to black pixels.
"""

import math
from abc import abstractmethod
from enum import StrEnum, auto
from functools import partial

import numpy as np
from jaxtyping import Int, UInt8

from lra.conf.choices import by_name
from lra.tasks.baselines.seen_examples import Pictures
from lra.tasks.classification.base import ClassificationTask, baseline
from lra.tasks.data.storage import RaggedRows
from lra.tasks.task import Baseline, Batch
from lra.tasks.tensors import Tensor, torch

LEVELS = 256
SHADES = " .:-=+*#%@"
"""Characters from black to white, to show a picture in a terminal."""


class Encoding(StrEnum):
    """How a model reads a pixel."""

    symbols = auto()
    """As one of 256 ids."""
    scalars = auto()
    """As a real number."""


class GrayTask(ClassificationTask):
    """A task of gray pictures; a base class. The constructor of a subclass calls `encode`."""

    usual_share = 0.5

    @by_name
    def encode(
        self, encoding: Encoding, *, mean: float, deviation: float, black_is_padding: bool
    ) -> None:
        """Set how a model reads a pixel, by the options of these names.

        Raises:
            ValueError: The options contradict each other.
        """
        self.scalars = encoding is Encoding.scalars
        if self.scalars and black_is_padding:
            raise ValueError(
                "task.black_is_padding=true needs task.encoding=symbols: got encoding=scalars; set "
                "task.black_is_padding=false"
            )
        if deviation <= 0:
            raise ValueError(f"task.deviation must be above 0: got {deviation}")
        self.mean: float | tuple[float, ...] = mean
        self.deviation: float | tuple[float, ...] = deviation
        self.black_is_padding = black_is_padding
        # Symbols are levels plus 1, because id 0 is padding.
        self.shift = 0 if black_is_padding or self.scalars else 1

    @property
    def vocabulary(self) -> int:
        """Number of token ids; 0 for real numbers."""
        return 0 if self.scalars else LEVELS + self.shift

    def visible_batch(self, batch: Batch, seed: int) -> Batch:
        """Return a batch of stored levels as the model reads it."""
        del seed
        if self.scalars:
            tokens = batch.tokens.to(torch.float32).div_(255)
            mean, deviation = map(_by_channel, (self.mean, self.deviation))
            return batch._replace(tokens=tokens.sub_(mean).div_(deviation))
        if self.black_is_padding:
            return batch._replace(keep=batch.tokens != 0)
        return batch

    def stored(self, batch: Batch) -> Int[np.ndarray, "b p l *rgb"]:
        """Return the levels (0 … 255) of a batch that a model reads; padding is black."""
        if not self.scalars:
            return super().stored(batch)
        mean, deviation = map(_by_channel, (self.mean, self.deviation))
        levels = (batch.tokens.double() * deviation + mean) * 255
        return levels.round_().clamp_(0, LEVELS - 1).long().numpy()

    @property
    def view(self) -> dict[str, object]:
        """Options that decide how a model reads the stored levels: part of a certificate."""
        return {"mean": self.mean, "deviation": self.deviation} if self.scalars else {}

    @property
    def shows_whole_pictures(self) -> bool:
        """Whether a model reads every pixel of a picture, row by row."""
        return True

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the baselines on `split`; for whole pictures, also a CNN with small windows."""
        results = super().baselines(split)
        if self.shows_whole_pictures and not self.per_token:
            from lra.tasks.baselines import image_windows

            answers = image_windows.window_answers(
                self.pictures("train"), self.pictures(split), classes=self.spec.classes
            )
            results.append(
                baseline(
                    "windows",
                    answers,
                    "This baseline is a small CNN, which averages over windows of "
                    f"{image_windows.WINDOW} x {image_windows.WINDOW} pixels. A model with this "
                    "score may combine only pixels inside such a window.",
                )
            )
        return results

    def pictures(self, split: str) -> Pictures:
        """Return what a model reads of a split, as square pictures; padding is black."""
        targets = self.split(split).targets.astype(np.int64)
        return Pictures(targets, partial(self._read_levels, split))

    def _read_levels(
        self, split: str, examples: Int[np.ndarray, " b"]
    ) -> UInt8[np.ndarray, "b s s"]:
        """Return the gray levels of some examples, as square pictures."""
        (batch,) = self.read(split, [examples], 0)
        side = math.isqrt(batch.tokens.shape[-1])
        return self.stored(batch).astype(np.uint8).reshape(-1, side, side)

    @abstractmethod
    def levels(self, row: UInt8[np.ndarray, " l"]) -> UInt8[np.ndarray, "s s"]:
        """Return the square picture of a stored row of pixels."""

    @abstractmethod
    def class_name(self, target: int) -> str:
        """Return the name of the class `target`."""

    def describe(self, split: str, index: int) -> str:
        """Return an example as text: the picture, with two characters per pixel, and its class."""
        (row,), target = self.example(split, index)
        shades = self.levels(row).astype(int) * len(SHADES) // LEVELS
        lines = ["".join(SHADES[shade] * 2 for shade in line).rstrip() for line in shades]
        return "\n".join([*lines, f"-> {target} ({self.class_name(target)})"])


def _by_channel(numbers: float | tuple[float, ...]) -> float | Tensor:
    """Return a number for all channels, or one for each as a tensor [c]."""
    return torch.tensor(numbers) if isinstance(numbers, tuple) else numbers


def rows_of(
    pictures: UInt8[np.ndarray, "n *picture"], labels: UInt8[np.ndarray, " n"]
) -> RaggedRows:
    """Return pictures of one size as stored sequences of all their levels, with their labels."""
    flat = pictures.reshape(len(pictures), -1)
    offsets = np.arange(len(flat) + 1, dtype=np.int64) * flat.shape[1]
    return RaggedRows(np.ascontiguousarray(flat).reshape(-1), offsets, labels)
