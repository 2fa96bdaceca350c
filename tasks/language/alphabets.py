"""Bytes and characters as tokens.

All 256 bytes are ids, so bytes need no vocabulary. Characters are the code points that occur often
enough in train, in numerical order; the last id, `<unk>`, stands for any other character. The
characters are stored as a text that has each of them once.
"""

import hashlib
from collections.abc import Callable, Iterable
from functools import cached_property

import numpy as np
from jaxtyping import Int, Integer

from lra.tasks.data.lines import LineBlock
from lra.tasks.errors import BadData
from lra.tasks.language import vocabulary_cache
from lra.tasks.language.words import token_type

VERSION = 1
CODE_POINTS = 0x110000
UNKNOWN = "\ufffd"
"""Shown in place of `<unk>`."""


class Bytes:
    """The bytes of a text."""

    name, size, sha256 = "bytes", 256, ""

    def __init__(self) -> None:
        self.recipe = {"kind": "bytes"}

    def is_stored(self) -> bool:
        """Return True, because bytes need no stored vocabulary."""
        return True

    def learn(self, train: Callable[[], Iterable[LineBlock]]) -> None:
        """Do nothing: bytes need no vocabulary."""

    def encode(self, block: LineBlock) -> Integer[np.ndarray, " n"]:
        """Return the bytes of a text."""
        return np.frombuffer(block.text, np.uint8)

    def encode_text(self, text: str) -> Integer[np.ndarray, " n"]:
        """Return the bytes of any text."""
        return np.frombuffer(text.encode(), np.uint8)

    def decode(self, ids: Integer[np.ndarray, " n"]) -> str:
        """Return the text of some bytes, with � for bytes that are no UTF-8."""
        return ids.astype(np.uint8).tobytes().decode(errors="replace")


class CharacterSet:
    """The characters of the train split; counted once, and stored in the cache.

    Args:
        train: Identity of the train split's content.
        least: Number of occurrences in train from which a character has an id.
    """

    name = "characters"

    def __init__(self, *, train: object, least: int) -> None:
        self.least, self.missed = least, 0
        self.recipe = {"kind": "characters", "version": VERSION, "train": train, "least": least}

    @property
    def _file(self) -> vocabulary_cache.CachedFile:
        return vocabulary_cache.cached_file("characters", "alphabet.txt", self.recipe)

    def is_stored(self) -> bool:
        """Return whether the characters are stored on this machine."""
        return vocabulary_cache.is_stored(self._file)

    def learn(self, train: Callable[[], Iterable[LineBlock]]) -> None:
        """Count the characters of train, unless they are stored.

        Raises:
            BadData: No character occurs `least` times.
        """
        vocabulary_cache.stored_or_built(self._file, lambda: self._count_characters(train()))

    def _count_characters(self, train: Iterable[LineBlock]) -> bytes:
        """Return the characters that occur at least `self.least` times, as UTF-8."""
        counts = np.zeros(CODE_POINTS, np.int64)
        for block in train:
            counts += np.bincount(_code_points(block.text), minlength=CODE_POINTS)
        frequent = np.flatnonzero(counts >= self.least)
        if not len(frequent):
            raise BadData(
                f"no character occurs {self.least} times in train, which has {counts.sum():,} "
                "characters; add more text, or lower task.least_count"
            )
        return "".join(map(chr, frequent.tolist())).encode()

    @property
    def sha256(self) -> str:
        """Hash of the stored characters, after checking them."""
        return hashlib.sha256(vocabulary_cache.read_verified(self._file)).hexdigest()

    @cached_property
    def _known(self) -> Int[np.ndarray, " characters"]:
        return _code_points(vocabulary_cache.read_verified(self._file))

    @property
    def size(self) -> int:
        """Number of ids."""
        return len(self._known) + 1

    def encode(self, block: LineBlock) -> Integer[np.ndarray, " n"]:
        """Return the ids of the characters of a text; add the unknown ones to `missed`."""
        codes = _code_points(block.text)
        ids = np.searchsorted(self._known, codes)  # of unknown ones, where they would be inserted
        unknown = self._known.take(ids, mode="clip") != codes
        self.missed += int(unknown.sum())
        return np.where(unknown, len(self._known), ids).astype(token_type(self.size))

    def unknown_letters(self, text: bytes) -> bytes:
        """Return the characters of a text that `encode` reads as `<unk>`."""
        codes = _code_points(text)
        return "".join(map(chr, codes[~np.isin(codes, self._known)].tolist())).encode()

    def encode_text(self, text: str) -> Integer[np.ndarray, " n"]:
        """Return the ids of any text.

        Raises:
            ValueError: A character is unknown.
        """
        known = {chr(code) for code in self._known.tolist()}
        if missing := [*dict.fromkeys(letter for letter in text if letter not in known)]:
            raise ValueError(
                f"train does not contain the characters {', '.join(map(repr, missing[:8]))}; use "
                "other ones"
            )
        return self.encode(LineBlock(text.encode(), "text", 1))

    def decode(self, ids: Integer[np.ndarray, " n"]) -> str:
        """Return the text of some ids, with � for `<unk>`."""
        letters = [*map(chr, self._known.tolist()), UNKNOWN]
        return "".join(letters[i] for i in ids.tolist())


def _code_points(text: bytes) -> Int[np.ndarray, " n"]:
    """Return the code point of each character of a text in UTF-8."""
    return np.frombuffer(text.decode().encode("utf-32-le"), np.uint32).astype(np.int64)
