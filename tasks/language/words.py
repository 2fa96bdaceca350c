"""Words as tokens: a closed vocabulary, counted on the train split.

    ' = Title = ⏎ ⏎'  ->  = Title = <eos> <eos>

Lines are split on blanks, and `<eos>` stands at the end of each, blank ones included. Ids follow
(-count, word): the most frequent word has id 0, as an adaptive softmax wants it. `<unk>` and
`<eos>` are words like any other. The vocabulary is kept as a text: a word and its count a line.
"""

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum, auto
from functools import cached_property

import numpy as np
from jaxtyping import Integer

from lra.conf.short_values import short_repr
from lra.tasks.data.lines import LineBlock
from lra.tasks.errors import BadData
from lra.tasks.language import vocabulary_cache

VERSION = 1
UNKNOWN, END = b"<unk>", b"<eos>"

log = logging.getLogger(__name__)


class Unknown(StrEnum):
    """What becomes of a word that train does not have."""

    refuse = auto()
    """An error that names it."""
    unk = auto()
    """It is read as `<unk>`, and counted."""


class _Table(dict[bytes, int]):
    """Ids by word; what is missing counts as `<unk>`."""

    missed = 0

    def __missing__(self, word: bytes) -> int:
        self.missed += 1
        return self[UNKNOWN]


def split_words(text: bytes) -> list[bytes]:
    """Return the words of whole lines, with `<eos>` for each line end."""
    return text.replace(b"\n", b" " + END + b" ").split()


def count_words(blocks: Iterable[LineBlock]) -> Counter[bytes]:
    """Count the words of a text, a block at a time."""
    counts: Counter[bytes] = Counter()
    for block in blocks:
        counts.update(split_words(block.text))
    return counts


def vocabulary_file(counts: Mapping[bytes, int], least: int = 1) -> bytes:
    """Return the content of a vocabulary's file, the most frequent word first.

    Args:
        counts: How often each word occurs.
        least: Words that occur less often count as `<unk>`.
    """
    kept = {word: count for word, count in counts.items() if count >= least or word == END}
    every = {UNKNOWN: 0, END: 0, **kept}
    every[UNKNOWN] += sum(counts.values()) - sum(kept.values())
    order = sorted(every.items(), key=lambda item: (-item[1], item[0]))
    return b"".join(b"%s %d\n" % item for item in order)


def token_type(ids: int) -> type[np.unsignedinteger]:
    """Return the smallest type that is fit for so many ids."""
    return np.uint16 if ids <= 1 << 16 else np.uint32


class Words:
    """The tokeniser; made once from the train split, kept in the cache.

    Args:
        size: Number of ids that is wanted; None: as many as train gives.
        train: Identity of the train split's content.
        unknown: What becomes of words that the vocabulary does not have.
        least: Times that a word of the vocabulary occurs in train.
    """

    def __init__(
        self, *, size: int | None, train: object, unknown: Unknown, least: int = 1
    ) -> None:
        self.wanted, self.unknown, self.least = size, unknown, least
        self.recipe = {"kind": "words", "version": VERSION, "train": train}
        self.recipe |= {} if least == 1 else {"least": least}
        self.name = "words"

    @property
    def size(self) -> int:
        """Number of ids."""
        return len(self._words) if self.wanted is None else self.wanted

    @property
    def missed(self) -> int:
        """Words read as `<unk>` so far, because the vocabulary does not have them."""
        return self._table.missed

    @property
    def _file(self) -> vocabulary_cache.CachedFile:
        return vocabulary_cache.cached_file("words", "vocabulary.txt", self.recipe)

    def is_stored(self) -> bool:
        """Return whether the vocabulary is kept on this machine."""
        return vocabulary_cache.is_stored(self._file)

    def learn(self, train: Callable[[], Iterable[LineBlock]]) -> None:
        """Count the words of train, unless that is done.

        Raises:
            BadData: There are more or fewer words than `size`.
        """
        vocabulary_cache.stored_or_built(
            self._file, lambda: vocabulary_file(count_words(train()), self.least)
        )
        if self.wanted not in (None, len(self._words)):
            raise BadData(
                f"train has {len(self._words):,} words, <unk> and <eos> included, wanted "
                f"{self.wanted:,}: the file is truncated or another file; if that is intended, "
                f"set task.vocabulary_size={len(self._words)}"
            )

    @property
    def sha256(self) -> str:
        """Hash of the vocabulary, which is read and checked for it."""
        return hashlib.sha256(vocabulary_cache.read_verified(self._file)).hexdigest()

    @cached_property
    def _words(self) -> list[bytes]:
        return [
            line.rpartition(b" ")[0]
            for line in vocabulary_cache.read_verified(self._file).splitlines()
        ]

    @cached_property
    def _table(self) -> _Table:
        return _Table(zip(self._words, range(len(self._words)), strict=True))

    def encode(self, block: LineBlock) -> Integer[np.ndarray, " n"]:
        """Return the ids of the words of whole lines.

        Raises:
            BadData: A word is not in the vocabulary, and `unknown` is refuse.
        """
        words, before = split_words(block.text), self.missed
        ids = np.fromiter(
            map(self._table.__getitem__, words), token_type(self.size), count=len(words)
        )
        if self.missed > before and self.unknown is Unknown.refuse:
            word = next(word for word in words if word not in self._table)
            lines = block.text.split(b"\n")
            line = block.line + next(n for n, text in enumerate(lines) if word in text.split())
            raise BadData(
                f"{block.where}, line {line}: the word {short_repr(word.decode())} is not in "
                "train's vocabulary: do the splits belong together? To read such words as <unk>, "
                "set task.unknown=unk"
            )
        return ids

    def unknown_letters(self, text: bytes) -> bytes:
        """Return the words of a text that are read as `<unk>`, a blank behind each."""
        return b"".join(word + b" " for word in text.split() if word not in self._table)

    def encode_text(self, text: str) -> Integer[np.ndarray, " n"]:
        """Return the ids of any text, with `<eos>` for each line end.

        Raises:
            ValueError: A word is not in the vocabulary, which has `<unk>` for such words.
        """
        words = split_words(text.encode())
        missing = [*dict.fromkeys(word.decode() for word in words if word not in self._table)]
        if missing:
            raise ValueError(
                f"the vocabulary does not contain {', '.join(map(repr, missing[:8]))}: choose "
                "other words, separate signs by blanks, or write <unk> in their place"
            )
        return np.array([self._table[word] for word in words], token_type(self.size))

    def decode(self, ids: Integer[np.ndarray, " n"]) -> str:
        """Return the text of some ids; lines end behind their `<eos>`."""
        text = b" ".join(self._words[i] for i in ids.tolist()).decode()
        return text.replace("<eos> ", "<eos>\n")
