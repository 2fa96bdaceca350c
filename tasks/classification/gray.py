"""Pictures of gray levels as sequences: what a pixel is to the model, and to a reader.

    symbols   ids 1 … 256 (level + 1); nothing is padded
    scalars   real numbers (level / 255 - mean) / deviation, which a linear map embeds

`black_is_padding` is a quirk of the Long Range Arena code: levels are ids without a shift, so black
is the padding id 0, and families that mask padding do not see it.
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
from lra.tasks.tensors import torch

LEVELS = 256
SHADES = " .:-=+*#%@"
"""From black to white, for a look in a terminal."""


class Encoding(StrEnum):
    """What a pixel is to the model."""

    symbols = auto()
    """One of 256 ids."""
    scalars = auto()
    """A real number."""


class GrayTask(ClassificationTask):
    """A task of pictures; says `encode` in its constructor."""

    usual_share = 0.5

    @by_name
    def encode(
        self, encoding: Encoding, *, mean: float, deviation: float, black_is_padding: bool
    ) -> None:
        """Take the options that say what a pixel is.

        Raises:
            ValueError: They do not fit together.
        """
        self.scalars = encoding is Encoding.scalars
        if self.scalars and black_is_padding:
            raise ValueError(
                "black_is_padding needs encoding=symbols: got encoding=scalars; leave it false"
            )
        if deviation <= 0:
            raise ValueError(f"task.deviation must be above 0: got {deviation}")
        self.mean, self.deviation, self.black_is_padding = mean, deviation, black_is_padding
        self.shift = 0 if black_is_padding or self.scalars else 1

    @property
    def vocabulary(self) -> int:
        """Number of token ids; 0 for real numbers."""
        return 0 if self.scalars else LEVELS + self.shift

    def visible_batch(self, batch: Batch, seed: int) -> Batch:
        """Return a batch of levels as the model sees it."""
        del seed
        if self.scalars:
            tokens = batch.tokens.to(torch.float32)
            return batch._replace(tokens=tokens.div_(255).sub_(self.mean).div_(self.deviation))
        if self.black_is_padding:
            return batch._replace(keep=batch.tokens != 0)
        return batch

    def stored(self, batch: Batch) -> Int[np.ndarray, "b p l"]:
        """Return the levels that a batch shows; black where it pads."""
        if not self.scalars:
            return super().stored(batch)
        levels = (batch.tokens.double() * self.deviation + self.mean) * 255
        return levels.round_().clamp_(0, LEVELS - 1).long().numpy()

    @property
    def view(self) -> dict[str, object]:
        """Options that decide what a model sees of the stored levels: part of a certificate."""
        return {"mean": self.mean, "deviation": self.deviation} if self.scalars else {}

    @property
    def shows_whole_pictures(self) -> bool:
        """Whether a model sees every pixel of a picture, in the order of rows."""
        return True

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the baselines on `split`; of whole pictures, one by small windows as well."""
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
                    f"a small CNN averages over windows of {image_windows.WINDOW} x "
                    f"{image_windows.WINDOW} pixels: a model with this score may combine only "
                    "pixels inside such a window",
                )
            )
        return results

    def pictures(self, split: str) -> Pictures:
        """Return what a model sees of a split, as whole pictures; black is what it does not see."""
        return Pictures(self.split(split).targets.astype(np.int64), partial(self._levels, split))

    def _levels(self, split: str, examples: Int[np.ndarray, " b"]) -> UInt8[np.ndarray, "b s s"]:
        (batch,) = self.read(split, [examples], 0)
        side = math.isqrt(batch.tokens.shape[-1])
        return self.stored(batch).astype(np.uint8).reshape(-1, side, side)

    @abstractmethod
    def levels(self, row: UInt8[np.ndarray, " l"]) -> UInt8[np.ndarray, "s s"]:
        """Return the picture that a stored row shows."""

    @abstractmethod
    def class_name(self, target: int) -> str:
        """Return what a class means."""

    def describe(self, split: str, index: int) -> str:
        """Return one picture in characters, and its class."""
        (row,), target = self.example(split, index)
        shades = self.levels(row).astype(int) * len(SHADES) // LEVELS
        lines = ["".join(SHADES[shade] * 2 for shade in line).rstrip() for line in shades]
        return "\n".join([*lines, f"-> {target} ({self.class_name(target)})"])


def rows_of(
    pictures: UInt8[np.ndarray, "n p"] | UInt8[np.ndarray, "n s s"], labels: UInt8[np.ndarray, " n"]
) -> RaggedRows:
    """Return pictures of one size as stored sequences."""
    flat = pictures.reshape(len(pictures), -1)
    offsets = np.arange(len(flat) + 1, dtype=np.int64) * flat.shape[1]
    return RaggedRows(np.ascontiguousarray(flat).reshape(-1), offsets, labels)
