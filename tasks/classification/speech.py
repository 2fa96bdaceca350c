"""The base of tasks of raw speech: a recording as a sequence of its samples.

    samples   real numbers, normalised by the rule `normalise`
    mu_law    256 ids: sign(x) ln(1 + 255 |x|) / ln 256, in equal steps from -1 to 1

Shorter recordings are padded with silence at the end to `max_length` samples, longer ones are cut.
"""

import math
from collections.abc import Iterable, Iterator
from enum import StrEnum, auto
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, Int16

from lra.conf.choices import by_name
from lra.tasks.baselines import band_energies as bands
from lra.tasks.classification.base import ClassificationTask, baseline
from lra.tasks.data.batching import Draw, check_lengths, permutation
from lra.tasks.data.sources import data_root
from lra.tasks.data.storage import from_rows
from lra.tasks.task import Baseline, Batch, Kind, TaskSpec
from lra.tasks.tensors import Tensor, torch

FULL_SCALE = 32_768.0
"""Divisor of samples of 16 bits that brings them to -1 … 1."""
SMALLEST = 1e-5
"""Added to the deviation by `normalise=s4`."""
MU = 255
AT_ONCE = 256
"""Recordings that are in memory together."""


class Sound(StrEnum):
    """How a model reads a sample."""

    samples = auto()
    """As a real number."""
    mu_law = auto()
    """As one of 256 ids."""


# Not as a class, because `global` is a word of Python.
Normalise = StrEnum("Normalise", ["none", "global", "s4"])
"""What is done to real numbers.

none: They are divided by 32,768, and so in -1 … 1.
global: Then they get mean 0 and deviation 1 over all of train.
s4: As in S4's code: divided by 32,768 once more, so that the 1e-5 it adds to the deviation is not
    small beside that, and inputs are smaller than with global.
"""
GLOBAL = Normalise["global"]


class Recording(NamedTuple):
    """A recording, its class, and the split it is in."""

    split: str
    samples: Int16[np.ndarray, " n"]
    target: int


class SpeechTask(ClassificationTask):
    """Classification of recordings; the constructor of a subclass calls `hear`."""

    names: tuple[str, ...]
    """Names of the classes."""
    by_step = False
    """Whether mean and deviation of `normalise=s4` are those of each position of a recording."""
    bucket_batches = None

    @by_name
    def hear(
        self, encoding: Sound, normalise: Normalise, *, max_length: int, test_rate: int
    ) -> None:
        """Set how a model reads a recording, by the options of these names.

        Raises:
            ValueError: A number is too small, or the options contradict each other.
        """
        check_lengths(type(self).__name__, max_length=max_length, bucket_batches=None)
        if not 1 <= test_rate <= max_length:
            raise ValueError(
                f"task.test_rate={test_rate}: tests read every sample with 1, every second with 2, "
                f"up to task.max_length={max_length}"
            )
        if encoding is Sound.mu_law and normalise is not Normalise.none:
            raise ValueError(
                f"task.encoding=mu_law makes ids of samples in -1 … 1: got task.normalise="
                f"{normalise}; set task.normalise=none"
            )
        self.scalars, self.normalise = encoding is Sound.samples, normalise
        self.max_length = self.padded_length = max_length
        self.test_rate = test_rate

    def speech_spec(self, *, name: str, version: int, source: str, data_hash: str) -> TaskSpec:
        """Return the facts of a task of recordings."""
        rate = "" if self.test_rate == 1 else f", 1 of {self.test_rate} samples in tests"
        return TaskSpec(
            name=name, version=version, kind=Kind.classification,
            vocabulary=0 if self.scalars else MU + 1, classes=len(self.names),
            max_length=self.max_length, padded=False, scalars=self.scalars, metric="accuracy",
            source=source + rate, data_hash=data_hash,
        )  # fmt: skip

    @property
    def folder(self) -> Path:
        """Folder of the prepared data; every encoding uses the same one."""
        return data_root() / f"{self.spec.name}-{self.spec.data_hash}"

    @property
    def view(self) -> dict[str, object]:
        """Options that decide what a model reads of a recording: part of a certificate."""
        return {"normalise": self.normalise, "test_rate": self.test_rate}

    def write_recordings(self, recordings: Iterable[Recording], licence: str) -> None:
        """Store recordings, as they come."""
        self.write(
            ((r.split, from_rows([r.samples], np.array([r.target], np.uint8))) for r in recordings),
            classes=list(self.names),
            licence=licence,
        )

    def read(self, split: str, plan: Iterable[Int[np.ndarray, " _"]], seed: int) -> Iterator[Batch]:
        """Yield the batches of a plan as a model reads them."""
        step = self.test_rate if split == "test" else 1
        for batch in super().read(split, plan, seed):
            numbers = self._normalised(batch.tokens) if self.scalars else mu_law(batch.tokens)
            yield batch._replace(tokens=numbers[..., ::step].contiguous(), keep=None)

    def _normalised(self, samples: Int[Tensor, "b 1 l"]) -> Float[Tensor, "b 1 l"]:
        """Return samples as real numbers."""
        numbers = samples.float() / FULL_SCALE
        if self.normalise is Normalise.none:
            return numbers
        mean, deviation = map(torch.from_numpy, self.moments)
        if self.normalise is GLOBAL:
            return (numbers - mean) / deviation
        return (numbers - mean) / FULL_SCALE / (deviation / FULL_SCALE + SMALLEST)

    @cached_property
    def moments(self) -> Float[np.ndarray, "2 _"]:
        """Mean and deviation of train, padding included: one of each, or those of each position."""
        sums, number = np.zeros((2, self.max_length)), self.examples("train")
        for samples in self.sounds("train", np.arange(number)):
            sums += samples.sum(0), np.square(samples).sum(0)
        mean, square = sums / number
        if not (self.by_step and self.normalise is Normalise.s4):
            mean, square = (part.mean(keepdims=True) for part in (mean, square))
        deviation = np.sqrt(np.maximum(square - mean**2, 0))
        if self.normalise is GLOBAL and not deviation.all():
            raise ValueError("train is silent, so task.normalise=global divides by 0; set none")
        return np.stack((mean, deviation)).astype(np.float32)

    def sounds(
        self, split: str, examples: Int[np.ndarray, " n"]
    ) -> Iterator[Float[np.ndarray, "b l"]]:
        """Yield recordings in blocks, padded or cut, as numbers in -1 … 1."""
        for block in np.split(examples, range(AT_ONCE, len(examples), AT_ONCE)):
            for batch in super().read(split, [block], 0):
                yield batch.tokens[:, 0].numpy() / FULL_SCALE

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the baselines on `split`, fitted on train."""
        chosen = permutation(Draw.order, 0, self.examples("train"))[: bands.FIT_EXAMPLES]
        train, energies = (
            np.concatenate([bands.band_energies(block) for block in self.sounds(part, examples)])
            for part, examples in (("train", chosen), (split, np.arange(self.examples(split))))
        )
        labels = self.split("train").targets[chosen].astype(np.int64)
        answers = bands.band_answers(train, labels, energies, classes=len(self.names))
        sentence = (
            f"This baseline is a logistic regression on the energies of {bands.BANDS} bands of "
            "frequencies. A model with this score may not know the order of sounds."
        )
        hit = answers == self.split(split).targets
        return [self.majority(split), baseline("band_energies", hit, sentence)]

    def describe(self, split: str, index: int) -> str:
        """Return an example as text: its length, its loudness over time, and its class."""
        (samples,), target = self.example(split, index)
        blocks = np.array_split(np.abs(samples.astype(float)), min(60, len(samples)))
        loud = [int(8 * math.sqrt(block.mean() / FULL_SCALE)) for block in blocks]
        picture = "".join(" ▁▂▃▄▅▆▇█"[level] for level in loud)
        return f"{len(samples):,} samples |{picture}|\n-> {target} ({self.names[target]})"


def mu_law(samples: Int[Tensor, "b 1 l"]) -> Int[Tensor, "b 1 l"]:
    """Return the ids 0 … 255 of samples of 16 bits; 128 is silence."""
    numbers = samples.double() / FULL_SCALE
    curved = numbers.sign() * torch.log1p(MU * numbers.abs()) / math.log(1 + MU)
    return ((curved + 1) / 2 * MU + 0.5).floor().long()
