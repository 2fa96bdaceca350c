"""Bytes and characters as tokens.

Bytes need no vocabulary: all 256 are ids. Characters are the code points that occur often enough in
train, in their order; the last id, `<unk>`, is any other. They are kept as a text that has each of
them once.
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
"""How a character that train does not have is shown."""


class Bytes:
    """The bytes of a text."""

    name, size, sha256 = "bytes", 256, ""

    def __init__(self) -> None:
        self.recipe = {"kind": "bytes"}

    def is_stored(self) -> bool:
        """Return True: nothing is stored."""
        return True

    def learn(self, train: Callable[[], Iterable[LineBlock]]) -> None:
        """Learn nothing."""

    def encode(self, block: LineBlock) -> Integer[np.ndarray, " n"]:
        """Return the bytes of a text."""
        return np.frombuffer(block.text, np.uint8)

    def encode_text(self, text: str) -> Integer[np.ndarray, " n"]:
        """Return the bytes of any text."""
        return np.frombuffer(text.encode(), np.uint8)

    def decode(self, ids: Integer[np.ndarray, " n"]) -> str:
        """Return the text of some bytes; what is no UTF-8 shows as �."""
        return ids.astype(np.uint8).tobytes().decode(errors="replace")


class CharacterSet:
    """The characters of the train split; made once, kept in the cache.

    Args:
        train: Identity of the train split's content.
        least: Times that a character of the set occurs in train.
    """

    name = "characters"

    def __init__(self, *, train: object, least: int) -> None:
        self.least, self.missed = least, 0
        self.recipe = {"kind": "characters", "version": VERSION, "train": train, "least": least}

    @property
    def _file(self) -> vocabulary_cache.CachedFile:
        return vocabulary_cache.cached_file("characters", "alphabet.txt", self.recipe)

    def is_stored(self) -> bool:
        """Return whether the characters are kept on this machine."""
        return vocabulary_cache.is_stored(self._file)

    def learn(self, train: Callable[[], Iterable[LineBlock]]) -> None:
        """Count the characters of train, unless that is done.

        Raises:
            BadData: None occurs `least` times.
        """
        vocabulary_cache.stored_or_built(self._file, lambda: self._counted(train()))

    def _counted(self, train: Iterable[LineBlock]) -> bytes:
        counts = np.zeros(CODE_POINTS, np.int64)
        for block in train:
            counts += np.bincount(_code_points(block.text), minlength=CODE_POINTS)
        kept = np.flatnonzero(counts >= self.least)
        if not len(kept):
            raise BadData(
                f"no character occurs {self.least} times in train, of {counts.sum():,}: add "
                "more text, or lower task.least_count"
            )
        return "".join(map(chr, kept.tolist())).encode()

    @property
    def sha256(self) -> str:
        """Hash of the characters, which are read and checked for it."""
        return hashlib.sha256(vocabulary_cache.read_verified(self._file)).hexdigest()

    @cached_property
    def _known(self) -> Int[np.ndarray, " characters"]:
        return _code_points(vocabulary_cache.read_verified(self._file))

    @property
    def size(self) -> int:
        """Number of ids."""
        return len(self._known) + 1

    def encode(self, block: LineBlock) -> Integer[np.ndarray, " n"]:
        """Return the ids of the characters of a text, and count those that are unknown."""
        codes = _code_points(block.text)
        ids = np.searchsorted(self._known, codes)
        unknown = self._known.take(ids, mode="clip") != codes
        self.missed += int(unknown.sum())
        return np.where(unknown, len(self._known), ids).astype(token_type(self.size))

    def unknown_letters(self, text: bytes) -> bytes:
        """Return the characters of a text that are read as `<unk>`."""
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
                f"train does not contain {', '.join(map(repr, missing[:8]))}: choose other "
                "characters"
            )
        return self.encode(LineBlock(text.encode(), "text", 1))

    def decode(self, ids: Integer[np.ndarray, " n"]) -> str:
        """Return the text of some ids; what was unknown shows as �."""
        letters = [*map(chr, self._known.tolist()), UNKNOWN]
        return "".join(letters[i] for i in ids.tolist())


def _code_points(text: bytes) -> Int[np.ndarray, " n"]:
    return np.frombuffer(text.decode().encode("utf-32-le"), np.uint32).astype(np.int64)
