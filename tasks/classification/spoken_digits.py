"""Spoken digits: the Free Spoken Digit Dataset (CC BY-SA 4.0), raw samples of 8 kHz.

    recording   DIGIT_SPEAKER_TAKE.wav, mono, 16 bits, 0.14 to 2.2 s
    target      0 … 9

Six speakers say each digit 50 times. With `split=takes`, takes 0 to 4 of each speaker and digit are
test, as the publisher divides them, and we take 5 to 9 for validation: the same voices are in all
splits. With `split=speaker`, one speaker is the test, so a voice is new. 300 or 500 test recordings
tell models apart only if they differ by several points. `source=sample` draws chirps and vowels.
"""

import re
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum, auto
from functools import cached_property
from itertools import product
from pathlib import PurePosixPath
from typing import ClassVar

import numpy as np

from lra.tasks.classification.speech import Normalise, Recording, Sound, SpeechTask
from lra.tasks.data.batching import Draw, random_words
from lra.tasks.data.published_data import check_partial, check_whole, given_path, source_name
from lra.tasks.data.sources import path_identity
from lra.tasks.data.stored_task import GENERATED, identity_of
from lra.tasks.data.waves import packed_files, read_wave
from lra.tasks.errors import BadData, NotPrepared
from lra.tasks.task import TaskSpec

VERSION = 1
RATE = 8000
SPEAKERS = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")
TAKES, SAMPLE_TAKES, HELD = 50, 15, 5
"""Takes of a speaker and digit, published and in the sample; takes of test, and of validation."""
LICENCE = "CC BY-SA 4.0; name the Free Spoken Digit Dataset wherever its recordings are used"
INSTRUCTIONS = (
    "download the Free Spoken Digit Dataset (https://github.com/Jakobovski/"
    "free-spoken-digit-dataset) and set task.path to its folder or archive, or set "
    "task.source=sample for a trial"
)
NAME = re.compile(r"(\d)_([a-z]+)_(\d+)\.wav")


class DigitSource(StrEnum):
    """Where the recordings come from."""

    files = auto()
    sample = auto()


class DigitSplit(StrEnum):
    """Which recordings are the test."""

    takes = auto()
    """The first takes of every speaker."""
    speaker = auto()
    """All takes of one speaker."""


class SpokenDigits(SpeechTask):
    """Classification of spoken digits, sample by sample.

    Args:
        source: files, or sample (synthetic chirps and vowels for trials).
        path: A folder or an archive (tar or zip) with the WAV files; needed for source=files.
        partial: Whether `path` has only a part of the recordings; every row then says so.
        split: takes, or speaker.
        speaker: The speaker of the test with split=speaker.
        encoding: samples (real numbers) or mu_law (256 ids).
        normalise: What is done to samples: none (numbers in -1 … 1), global (mean 0 and deviation
            1 over train), or s4 (as in S4's code).
        test_rate: Tests read every sample with 1, every second one with 2.
        max_length: Number of samples to which recordings are padded or cut.
    """

    incidental: ClassVar[frozenset[str]] = frozenset({"path", "partial"})
    names = tuple(map(str, range(10)))

    def __init__(
        self,
        *,
        source: DigitSource = DigitSource.files,
        path: str | None = None,
        partial: bool = False,
        split: DigitSplit = DigitSplit.takes,
        speaker: str = SPEAKERS[-2],
        encoding: Sound = Sound.samples,
        normalise: Normalise = Normalise.none,
        test_rate: int = 1,
        max_length: int = 8192,
    ) -> None:
        check_partial(partial, path is not None)
        if speaker not in SPEAKERS:
            raise ValueError(f"task.speaker: got {speaker!r}; wanted one of {', '.join(SPEAKERS)}")
        self.source, self.path, self.partial = source, given_path(path, source), partial
        self.by_speaker, self.speaker = split is DigitSplit.speaker, speaker
        self.hear(encoding, normalise, max_length=max_length, test_rate=test_rate)

    @cached_property
    def spec(self) -> TaskSpec:
        """The facts about this task."""
        source = source_name(self.source, self.path, partial=self.partial)
        return self.speech_spec(
            name="spoken_digits", version=VERSION, data_hash=self.content_hash(self._identity),
            source=source + (f", test speaker {self.speaker}" if self.by_speaker else ""),
        )  # fmt: skip

    def _identity(self) -> str:
        """Return the hash of everything that decides the prepared data."""
        if self.source is DigitSource.files and self.path is None:
            raise NotPrepared(f"task=spoken_digits needs files: {INSTRUCTIONS}")
        content = path_identity(self.path, INSTRUCTIONS) if self.path else str(self.source)
        speaker = self.speaker if self.by_speaker else None
        facts = {"version": VERSION, "content": content, "speaker": speaker}
        return identity_of(facts | {"partial": self.partial})

    def make(self) -> None:
        """Read or draw the recordings, and store them by split."""
        recordings = [*(self._drawn() if self.path is None else self._read())]
        if self.path is not None:
            places = product(SPEAKERS, range(TAKES), self.names)
            check_whole(
                Counter(recording.split for recording in recordings),
                Counter(self._split_of(speaker, take) for speaker, take, _ in places),
                where=self.spec.source, of="recordings", partial=self.partial,
            )  # fmt: skip
        self.write_recordings(recordings, LICENCE if self.path else GENERATED)

    def _read(self) -> Iterator[Recording]:
        """Yield the recordings of the files."""
        assert self.path is not None, "files have a path"
        for name, content in packed_files(self.path, lambda name: name.suffix == ".wav"):
            digit, speaker, take = self._parts(name)
            samples = read_wave(content, f"{self.path}, {name}", rate=RATE)
            yield Recording(self._split_of(speaker, take), samples, digit)

    def _parts(self, name: PurePosixPath) -> tuple[int, str, int]:
        """Return digit, speaker and take in the name of a file."""
        parts = NAME.fullmatch(name.name)
        if parts is None or parts[2] not in SPEAKERS:
            raise BadData(
                f"{self.path}: the file {name.name} is none of DIGIT_SPEAKER_TAKE.wav, with one of "
                f"the speakers {', '.join(SPEAKERS)}; remove it, or choose the right folder"
            )
        return int(parts[1]), parts[2], int(parts[3])

    def _split_of(self, speaker: str, take: int) -> str:
        """Return the split of a recording."""
        if (speaker == self.speaker) if self.by_speaker else take < HELD:
            return "test"
        return "validation" if HELD <= take < 2 * HELD else "train"

    def _drawn(self) -> Iterator[Recording]:
        """Yield synthetic recordings: five chirps and five vowels by six voices."""
        for number, (voice, digit, take) in enumerate(np.ndindex(len(SPEAKERS), 10, SAMPLE_TAKES)):
            words = random_words(Draw.sample, number, 3 + RATE // 2)
            seconds = np.arange(int(RATE * (0.3 + 0.2 * words[0] / 2**64))) / RATE
            noise = 0.02 * (words[3 : 3 + len(seconds)] / 2**63 - 1)
            sound = sample_sound(digit, seconds, pitch=90 * 1.15**voice * (1 + words[1] / 2**67))
            loud = 0.2 + 0.6 * words[2] / 2**64
            samples = (32_767 * loud * (sound / 3 + noise)).astype(np.int16)
            yield Recording(self._split_of(SPEAKERS[voice], take), samples, digit)


def sample_sound(digit: int, seconds: np.ndarray, *, pitch: float) -> np.ndarray:
    """Return a chirp, whose frequency moves (digits 0 to 4), or a vowel of harmonics of `pitch`."""
    if digit < 5:
        octaves = (digit - 2) * seconds / seconds[-1]
        chirp: np.ndarray = np.sin(2 * np.pi * np.cumsum(8 * pitch * 2**octaves) / RATE)
        return chirp
    formants = ((300, 2300), (400, 1700), (700, 1100), (500, 900), (350, 650))[digit - 5]
    harmonics = pitch * np.arange(1, int(RATE / 2 / pitch))
    heights = sum(np.exp(-(((harmonics - formant) / 150) ** 2)) for formant in formants)
    sound: np.ndarray = heights @ np.sin(2 * np.pi * harmonics[:, None] * seconds)
    return sound
