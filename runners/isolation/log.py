"""The bounded log of a job: its beginning and its end, however much was written. Torch-free.

The job's processes append (`O_APPEND`), so the parent may shorten the file under their hands: their
next words go to its new end. Between two looks a file grows by what the disk takes in that time;
looks come faster while it grows fast.
"""

import os
import re
import stat
from contextlib import suppress
from pathlib import Path

from lra.conf.plain_files import open_file

HEAD_BYTES = TAIL_BYTES = 1 << 20
LARGEST_BYTES = 4 << 20
"""A log is shortened, to its head and its tail, when it is larger."""
_LOOK_S, _SOON_S = 0.5, 0.02
_LAST_BYTES = 1 << 16
_LEFT_OUT = re.compile(rb"\n\[about (\d+) bytes left out\]\n")


class Log:
    """The log of one attempt at a job, as the parent sees it; it may not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._start = self._seen = self._size()
        self.wait_s = _SOON_S
        """How long the next `shorten` may wait."""

    def shorten(self) -> None:
        """Shorten the file where it has become too large."""
        size = self._size()
        fast = size - self._seen > TAIL_BYTES
        self.wait_s = _SOON_S if fast else min(2 * self.wait_s, _LOOK_S)
        if size > LARGEST_BYTES:
            with suppress(OSError):  # it is no result: a folder that refuses shows elsewhere
                size = self._shorten()
        self._seen = size

    def finish(self) -> None:
        """Look for the last time; an empty file goes."""
        self.shorten()
        with suppress(OSError):
            if self.path.is_file() and not self._size():
                self.path.unlink()

    def last_words(self) -> str:
        """Return the end of what this attempt wrote: before it stand the words of earlier ones."""
        try:
            with os.fdopen(open_file(self.path), "rb") as file:
                file.seek(max(self._start, self._size() - _LAST_BYTES))
                return file.read(_LAST_BYTES).decode(errors="replace").strip()
        except OSError:
            return ""

    def _size(self) -> int:
        try:
            status = self.path.stat()
        except OSError:
            return 0
        return status.st_size if stat.S_ISREG(status.st_mode) else 0

    def _shorten(self) -> int:
        """Move the tail to the end of the head, and return the new size."""
        with self.path.open("r+b") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(HEAD_BYTES)
            before = _LEFT_OUT.match(file.read(100))
            left_out = size - TAIL_BYTES - HEAD_BYTES
            if before is not None:
                left_out += int(before[1]) - len(before[0])
            position = size - TAIL_BYTES
            written = HEAD_BYTES
            part = b"\n[about %d bytes left out]\n" % left_out
            moved = position - written - len(part)
            while part and written < LARGEST_BYTES:  # also what is written meanwhile
                file.seek(written)
                written += file.write(part)
                file.seek(position)
                part = file.read(TAIL_BYTES)
                position += len(part)
            file.truncate(written)
        if self._start > HEAD_BYTES:
            self._start = max(HEAD_BYTES, self._start - moved)
        return written
