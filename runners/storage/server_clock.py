"""What time it is on the file server, which need not be what it is here."""

import os
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

ASKED_S = 10.0
"""For so long the answer of the server holds."""
STEPPED_S = 5.0
"""A clock that gained or lost so many seconds against ours was set."""


def touched_now(folder: Path) -> float:
    """Touch a file in a folder and return the time that the server gave it. Raises OSError."""
    name = f".clock.{socket.gethostname()}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp"
    path = folder / name
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
    try:
        os.utime(descriptor)
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
        with suppress(OSError):
            path.unlink()


class ServerClock:
    """Ages of files by the clock that gave them their times.

    Args:
        clock: monotonic seconds of this process.
        ask: returns what time it is on the server of a folder, in seconds; raises OSError. None:
            nothing is written, and this machine's clock is taken for the server's.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        ask: Callable[[Path], float] | None = touched_now,
    ) -> None:
        self.clock, self.ask = clock, ask
        self._answers: dict[Path, tuple[float, float]] = {}
        """Of each folder, when the server was asked by our clock, and what it said."""
        self._set: dict[Path, float] = {}
        """When we saw that a server's clock had been set."""

    def now(self, folder: Path) -> float:
        """Return what time it is on the server: seconds since 1970.

        Where nothing can be written in the folder, this machine's time.
        """
        if self.ask is None:
            return time.time()
        now = self.clock()
        if folder in self._answers:
            asked, said = self._answers[folder]
            if now - asked < ASKED_S:
                return said + now - asked
        try:
            answer = self.ask(folder)
        except OSError:
            return time.time()
        if folder in self._answers:
            asked, said = self._answers[folder]
            if abs(answer - said - (now - asked)) > STEPPED_S:
                self._set[folder] = now
        self._answers[folder] = now, answer
        return answer

    def age_s(self, folder: Path, touched_ns: int, *, trusted_s: float) -> float | None:
        """Return the age of a file in a folder; None where the clock was set in `trusted_s`."""
        age_s = self.now(folder) - touched_ns / 1e9
        was_set = self._set.get(folder)
        return None if was_set is not None and self.clock() - was_set < trusted_s else age_s
