"""Calls of the system on chosen paths that fail: as on a shared file system, in this process."""

import errno
import os
from collections import Counter
from pathlib import Path

import pytest

PASSING = (
    errno.ESTALE, errno.EIO, errno.EAGAIN, errno.ETIMEDOUT, errno.EMFILE, errno.ENOMEM,
    errno.EBUSY, errno.EPROTO, errno.ENOTCONN, errno.EHOSTDOWN,
)  # fmt: skip
CALLS = ("open", "stat", "lstat", "listdir", "scandir", "unlink", "rename", "replace", "mkdir")


class Faults:
    """Has calls of `os` whose path holds a word fail so many times; counts all on paths."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.patch = patch
        self.word, self.number, self.left = "", 0, 0
        self.calls: Counter[str] = Counter()
        self.failed = 0
        self.only = ""
        for name in CALLS:
            self._wrap(name)

    def _wrap(self, name: str) -> None:
        real = getattr(os, name)

        def call(path, *given, **options):
            self.calls[name] += 1
            self._fail(name, path)
            return real(path, *given, **options)

        self.patch.setattr(os, name, call)

    def _fail(self, name: str, path: object) -> None:
        text = os.fspath(path) if isinstance(path, str | Path) else ""
        if self.left > 0 and self.word in text and self.only in ("", name):
            self.left -= 1
            self.failed += 1
            raise OSError(self.number, os.strerror(self.number), text)

    def fail(self, number: int, word: str, times: float = 1, only: str = "") -> None:
        """Have the next so many calls on paths with this word in them fail."""
        self.number, self.word, self.left, self.only = number, word, times, only


FOREVER = float("inf")
