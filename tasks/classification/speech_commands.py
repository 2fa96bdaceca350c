"""Speech Commands (arXiv:1804.03209; version 0.02, CC BY 4.0): spoken words, raw samples of 16 kHz.

    recording   WORD/SPEAKER_nohash_TAKE.wav, mono, 16 bits, at most 1 s
    target      the word: one of 35, or one of 10

With `words=sc35`, the publisher's lists name validation and test, and shorter recordings are
padded. With `words=sc10`, as in older papers, recordings that are not exactly 16,000 samples long
are left out, and 15 % of each word are validation and 15 % test, drawn from `data_seed` (papers
draw others): the same speakers are then in all splits. `test_rate=2` reads every second sample of
tests, without a filter, by the same model: a test of 8 kHz without training. Papers also double the
step of a state space, which a model here does not know.
"""

from collections.abc import Iterator
from enum import StrEnum, auto
from functools import cached_property
from typing import ClassVar

import numpy as np

from lra.tasks.classification.speech import Normalise, Recording, Sound, SpeechTask
from lra.tasks.data.batching import Draw, permutation
from lra.tasks.data.published_data import MARK, check_partial, named_path
from lra.tasks.data.sources import path_identity
from lra.tasks.data.stored_task import identity_of
from lra.tasks.data.waves import packed_files, read_wave
from lra.tasks.errors import BadData, NotPrepared
from lra.tasks.task import SPLITS, TaskSpec

VERSION = 1
RATE = 16_000
SC10 = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
SC35 = (
    "backward", "bed", "bird", "cat", "dog", "down", "eight", "five", "follow", "forward", "four",
    "go", "happy", "house", "learn", "left", "marvin", "nine", "no", "off", "on", "one", "right",
    "seven", "sheila", "six", "stop", "three", "tree", "two", "up", "visual", "wow", "yes", "zero",
)  # fmt: skip
LISTS = {"validation_list.txt": "validation", "testing_list.txt": "test"}
HELD = 0.15
"""Share of each word of sc10 in validation, and in test."""
LICENCE = "CC BY 4.0; cite arXiv:1804.03209"
INSTRUCTIONS = (
    "download http://download.tensorflow.org/data/speech_commands_v0.02.tar.gz and set task.path "
    "to the archive or its unpacked folder"
)


class CommandWords(StrEnum):
    """The words, and how they are split."""

    sc35 = auto()
    """All 35, by the publisher's lists."""
    sc10 = auto()
    """Ten of them, at random."""


class SpeechCommands(SpeechTask):
    """Classification of spoken words, sample by sample.

    Args:
        words: sc35 or sc10.
        path: The published archive, or its unpacked folder.
        partial: Whether `path` has only a part of the recordings; every row then says so.
        data_seed: Seed of the splits of sc10.
        encoding: samples (real numbers) or mu_law (256 ids).
        normalise: What is done to samples: none (numbers in -1 … 1), global (mean 0 and deviation
            1 over train), or s4 (as in S4's code).
        test_rate: Tests read every sample with 1, every second one with 2.
        max_length: Number of samples to which recordings are padded or cut.
    """

    incidental: ClassVar[frozenset[str]] = frozenset({"path", "partial"})

    def __init__(
        self,
        *,
        words: CommandWords = CommandWords.sc35,
        path: str | None = None,
        partial: bool = False,
        data_seed: int = 0,
        encoding: Sound = Sound.samples,
        normalise: Normalise = Normalise.none,
        test_rate: int = 1,
        max_length: int = RATE,
    ) -> None:
        check_partial(partial, path is not None)
        all_words = words is CommandWords.sc35
        if data_seed < 0 or (all_words and data_seed):
            raise ValueError(
                f"task.data_seed splits words=sc10, and is at least 0: got {data_seed} with "
                f"task.words={words}; set it to 0"
            )
        self.words, self.names, self.by_step = words, SC35 if all_words else SC10, all_words
        self.path, self.partial = None if path is None else named_path(path), partial
        self.data_seed = data_seed
        self.hear(encoding, normalise, max_length=max_length, test_rate=test_rate)

    @cached_property
    def spec(self) -> TaskSpec:
        """The facts about this task."""
        name = "files" if self.path is None else f"files: {self.path.name}"
        return self.speech_spec(
            name="speech_commands", version=VERSION, data_hash=self.content_hash(self._identity),
            source=f"{name}, {self.words}{MARK if self.partial else ''}",
        )  # fmt: skip

    def _identity(self) -> str:
        """Return the hash of everything that decides the prepared data."""
        if self.path is None:
            raise NotPrepared(f"task=speech_commands needs files: {INSTRUCTIONS}")
        facts = {"version": VERSION, "content": path_identity(self.path, INSTRUCTIONS)}
        return identity_of(
            facts | {"words": self.words, "data_seed": self.data_seed, "partial": self.partial}
        )

    def make(self) -> None:
        """Read the recordings and store them by split."""
        splits = self._listed() if self.words is CommandWords.sc35 else self._drawn_splits()
        counts = dict.fromkeys(SPLITS, 0)
        missing = {name for name, split in splits.items() if split != "train"}
        unheard = set(self.names)

        def recordings() -> Iterator[Recording]:
            for name, samples in self._read():
                if self.words is CommandWords.sc10 and name not in splits:
                    continue
                word, split = name.split("/")[0], splits.get(name, "train")
                counts[split] += 1
                missing.discard(name)
                unheard.discard(word)
                yield Recording(split, samples, self.names.index(word))
            self._check(counts, missing, unheard)

        self.write_recordings(recordings(), LICENCE)

    def _check(self, counts: dict[str, int], missing: set[str], unheard: set[str]) -> None:
        """Raise `BadData` for an empty split, or, unless the data are a part, for a gap."""
        empty = [split for split, number in counts.items() if not number]
        if empty:
            raise BadData(f"{self.path}: {' and '.join(empty)} have no recordings; {INSTRUCTIONS}")
        if (missing or unheard) and not self.partial:
            what = f"{len(missing)} recordings of its lists and {len(unheard)} of the words"
            raise BadData(f"{self.path} lacks {what}; {INSTRUCTIONS}, or set task.partial=true")

    def _read(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield WORD/FILE and samples of the recordings of the task's words."""
        assert self.path is not None, "without a path there is no hash, and no make"
        chosen = frozenset(self.names)
        for name, content in packed_files(
            self.path, lambda name: name.suffix == ".wav" and name.parent.name in chosen
        ):
            place = f"{name.parent.name}/{name.name}"
            yield place, read_wave(content, f"{self.path}, {place}", rate=RATE)

    def _listed(self) -> dict[str, str]:
        """Return the split of each recording that is in one of the lists."""
        assert self.path is not None, "without a path there is no hash, and no make"
        lists = {
            name.name: content.decode("utf-8", "replace").split()
            for name, content in packed_files(self.path, lambda name: name.name in LISTS)
        }
        if absent := LISTS.keys() - lists.keys():
            raise BadData(f"{self.path} has no {' and no '.join(sorted(absent))}; {INSTRUCTIONS}")
        return {place: split for name, split in LISTS.items() for place in lists[name]}

    def _drawn_splits(self) -> dict[str, str]:
        """Return a split for each recording of one second, drawn word by word."""
        whole = sorted(name for name, samples in self._read() if len(samples) == RATE)
        splits = dict.fromkeys(whole, "train")
        for number, word in enumerate(self.names):
            of_word = [name for name in whole if name.startswith(f"{word}/")]
            order = permutation(Draw.split, self.data_seed * len(SC10) + number, len(of_word))
            held = round(HELD * len(of_word))
            for place, chosen in enumerate(order[: 2 * held].tolist()):
                splits[of_word[chosen]] = "validation" if place < held else "test"
        return splits
