"""Words as tokens, with a closed vocabulary from the train split.

    ' = Title = ⏎ ⏎'  ->  = Title = <eos> <eos>

Blanks separate words, and `<eos>` ends each line, including blank lines. Ids are ordered by
(-count, word), so the most frequent word has id 0, as an adaptive softmax needs it. `<unk>` and
`<eos>` count as words. The vocabulary is stored as a text with a word and its count on each line.
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
    """Treatment of a word that train lacks."""

    refuse = auto()
    """Raise an error that names the word."""
    unk = auto()
    """Read the word as `<unk>`, and count it."""


class _Table(dict[bytes, int]):
    """Ids by word; a missing word has the id of `<unk>`, and is counted in `missed`."""

    missed = 0

    def __missing__(self, word: bytes) -> int:
        """Return the id of `<unk>`; Python calls this if the table lacks a word."""
        self.missed += 1
        return self[UNKNOWN]


def split_words(text: bytes) -> list[bytes]:
    """Return the words of whole lines, with `<eos>` for each line end."""
    return text.replace(b"\n", b" " + END + b" ").split()


def count_words(blocks: Iterable[LineBlock]) -> Counter[bytes]:
    """Return how often each word occurs in a text."""
    counts: Counter[bytes] = Counter()
    for block in blocks:
        counts.update(split_words(block.text))
    return counts


def vocabulary_file(counts: Mapping[bytes, int], least: int = 1) -> bytes:
    """Return the content of a vocabulary's file from counts of words, the most frequent first.

    Words that occur less than `least` times count as `<unk>`.
    """
    frequent = {word: count for word, count in counts.items() if count >= least or word == END}
    words = {UNKNOWN: 0, END: 0, **frequent}
    words[UNKNOWN] += sum(counts.values()) - sum(frequent.values())
    order = sorted(words.items(), key=lambda item: (-item[1], item[0]))
    return b"".join(b"%s %d\n" % item for item in order)


def token_type(ids: int) -> type[np.unsignedinteger]:
    """Return the smallest integer type for this number of ids."""
    return np.uint16 if ids <= 1 << 16 else np.uint32


class Words:
    """The tokeniser; made once from the train split, and stored in the cache.

    Args:
        size: Wanted number of ids; None: the number of words in train.
        train: Identity of the train split's content.
        unknown: Treatment of words outside the vocabulary.
        least: Number of occurrences in train from which a word has an id.
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
        """Number of words outside the vocabulary so far, which were read as `<unk>`."""
        return self._table.missed

    @property
    def _file(self) -> vocabulary_cache.CachedFile:
        return vocabulary_cache.cached_file("words", "vocabulary.txt", self.recipe)

    def is_stored(self) -> bool:
        """Return whether the vocabulary is stored on this machine."""
        return vocabulary_cache.is_stored(self._file)

    def learn(self, train: Callable[[], Iterable[LineBlock]]) -> None:
        """Count the words of train, unless the vocabulary is stored.

        Raises:
            BadData: There are more or fewer words than `size`.
        """
        vocabulary_cache.stored_or_built(
            self._file, lambda: vocabulary_file(count_words(train()), self.least)
        )
        if self.wanted not in (None, len(self._words)):
            raise BadData(
                f"train has {len(self._words):,} different words (including <unk> and <eos>); "
                f"wanted {self.wanted:,}; fetch the file again, or, to use another text, set "
                f"task.vocabulary_size={len(self._words)}"
            )

    @property
    def sha256(self) -> str:
        """Hash of the vocabulary's file, after checking it."""
        return hashlib.sha256(vocabulary_cache.read_verified(self._file)).hexdigest()

    @cached_property
    def _words(self) -> list[bytes]:
        """The word of each id; its count, after the last blank of a line, is not needed."""
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
                "train's vocabulary; use splits of the same text, or set task.unknown=unk to read "
                "such words as <unk>"
            )
        return ids

    def unknown_letters(self, text: bytes) -> bytes:
        """Return the words of a text that `encode` reads as `<unk>`, with a blank after each."""
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
                f"the vocabulary does not contain {', '.join(map(repr, missing[:8]))}; use other "
                "words, separate punctuation by blanks, or write <unk> instead"
            )
        return np.array([self._table[word] for word in words], token_type(self.size))

    def decode(self, ids: Integer[np.ndarray, " n"]) -> str:
        """Return the text of some ids, with a line end after each `<eos>`."""
        text = b" ".join(self._words[i] for i in ids.tolist()).decode()
        return text.replace("<eos> ", "<eos>\n")
