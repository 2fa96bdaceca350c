"""The log of a job, of limited size: only its beginning and its end are stored. Torch-free.

The processes of the job append (`O_APPEND`), so the parent can shorten the file while they write:
their next output goes to the new end. The faster the file grows, the more often its size is
checked.
"""

import os
import re
import stat
from contextlib import suppress
from pathlib import Path

from lra.conf.plain_files import open_file

HEAD_BYTES = TAIL_BYTES = 1 << 20
LARGEST_BYTES = 4 << 20
"""A larger log is shortened to its head and its tail."""
_LOOK_S, _SOON_S = 0.5, 0.02  # seconds between two checks of the size, at most and at least
_LAST_BYTES = 1 << 16  # most output that `last_words` returns
_LEFT_OUT = re.compile(rb"\n\[about (\d+) bytes left out\]\n")


class Log:
    """The log file of one attempt at a job; the file may not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Size before this attempt, which appends to earlier ones, and size at the last check.
        self._start = self._seen = self._size()
        self.wait_s = _SOON_S
        """Call `shorten` again after so many seconds."""

    def shorten(self) -> None:
        """Shorten the file if it has become too large."""
        size = self._size()
        grows_fast = size - self._seen > TAIL_BYTES
        self.wait_s = _SOON_S if grows_fast else min(2 * self.wait_s, _LOOK_S)
        if size > LARGEST_BYTES:
            with suppress(OSError):  # a log is not a result; a bad folder is reported elsewhere
                size = self._cut_middle()
        self._seen = size

    def finish(self) -> None:
        """Shorten the file for the last time, and remove it if it is empty."""
        self.shorten()
        with suppress(OSError):
            if self.path.is_file() and not self._size():
                self.path.unlink()

    def last_words(self) -> str:
        """Return the end of the output of this attempt, without output of earlier attempts."""
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

    def _cut_middle(self) -> int:
        """Replace the middle of the file by a note of its size, and return the new file size."""
        with self.path.open("r+b") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(HEAD_BYTES)
            earlier_note = _LEFT_OUT.match(file.read(100))
            left_out = size - TAIL_BYTES - HEAD_BYTES
            if earlier_note is not None:  # its bytes are no output, but it counts output
                left_out += int(earlier_note[1]) - len(earlier_note[0])
            position = size - TAIL_BYTES
            written = HEAD_BYTES
            part = b"\n[about %d bytes left out]\n" % left_out
            moved = position - written - len(part)  # the tail moves to the front by so many bytes
            # First the note, then the tail, and also output that arrives meanwhile.
            while part and written < LARGEST_BYTES:
                file.seek(written)
                written += file.write(part)
                file.seek(position)
                part = file.read(TAIL_BYTES)
                position += len(part)
            file.truncate(written)
        if self._start > HEAD_BYTES:  # this attempt begins in the part that moved or was cut
            self._start = max(HEAD_BYTES, self._start - moved)
        return written
