"""The log of a worker: bounded, never empty, and it never stops the work."""

import io
import logging
import os
from contextlib import suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TextIO

from lra.conf.plain_files import APPENDING
from lra.runners.storage.atomic import make_folder
from lra.terminal.screen import escape

MOST_BYTES = 2 << 20
"""Most bytes of the file; earlier lines move into a second file, `NAME.log.1`."""


class _Quiet(RotatingFileHandler):
    """Writes lines into a file, without a traceback on a full disk or a wait for a pipe."""

    def _open(self) -> io.TextIOWrapper:
        """Open the file at its end; the flags `APPENDING` make a pipe without a reader an error."""
        descriptor = os.open(self.baseFilename, APPENDING, 0o666)
        return os.fdopen(descriptor, "a", encoding=self.encoding, errors=self.errors)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # of the base
        """Ignore an error of the file."""


class WorkerLog(io.TextIOBase, TextIO):
    """A stream whose lines go into a file and, if there is one, to another stream."""

    def __init__(self, path: Path, echo: TextIO | None = None) -> None:
        """Take the path of the file, which is opened at the first line, and another stream."""
        make_folder(path.parent)
        self.path, self.echo = path, echo
        self._handler = _Quiet(
            path, maxBytes=MOST_BYTES, backupCount=1, encoding="utf-8", errors="backslashreplace",
            delay=True,
        )  # fmt: skip
        self._line = ""

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a class has it as a field
        """The encoding of lines."""
        return "utf-8"

    def write(self, text: str) -> int:
        """Write whole lines; an incomplete last line waits for its end."""
        *lines, self._line = (self._line + text).split("\n")
        for line in map(escape, lines):  # control characters would reach a terminal by `cat`
            record = logging.LogRecord("worker", logging.INFO, "", 0, "%s", (line,), None)
            self._handler.emit(record)
            if self.echo is not None:
                with suppress(OSError, ValueError):
                    print(line, file=self.echo, flush=True)
        return len(text)

    def flush(self) -> None:
        """Flush the file."""
        with suppress(OSError, ValueError):
            self._handler.flush()

    def close(self) -> None:
        """Close the file."""
        if self._line:
            self.write("\n")
        self._handler.close()
        super().close()
