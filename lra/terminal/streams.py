"""Make standard output and standard error safe to use if they are closed, full, or not read."""

import atexit
import io
import os
import sys
import threading
from contextlib import suppress
from typing import Any, NoReturn


class OutputError(OSError):
    """Standard output cannot be written, for example because a disk is full."""


class _Output(io.FileIO):
    """Standard output that raises `OutputError`, so that a message can name the stream."""

    def write(self, data: Any) -> int:
        """Write bytes and return their number."""
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            text = f"lra cannot write to its standard output: {error.strerror}"
            raise OutputError(error.errno, text) from error


class _Errors(io.FileIO):
    """Standard error that ignores failed writes, because the exit code also reports a failure."""

    def write(self, data: Any) -> int:
        """Write bytes, if possible, and return their number."""
        try:
            return super().write(data)
        except OSError:
            return len(data)


def settle() -> None:
    """Replace the standard streams by safe ones; text for a closed stream is discarded.

    A closed stream is opened as the null device. Otherwise the next file that lra opens would get
    the number of the stream, and printed text would be written into that file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - to the end of the process
    sys.stdout = _open_stream(_Output, 1, sys.stdout)
    sys.stderr = _open_stream(_Errors, 2, sys.stderr)


def _open_stream(kind: type[io.FileIO], number: int, before: Any) -> io.TextIOWrapper:
    """Return a text stream for file number `number` with the settings of the stream `before`."""
    return io.TextIOWrapper(
        io.BufferedWriter(kind(number, "w", closefd=False)),
        encoding=getattr(before, "encoding", "utf-8"),
        errors="backslashreplace",  # the name of a file can contain bytes that are not text
        line_buffering=number == 2 or getattr(before, "line_buffering", False),
        write_through=getattr(before, "write_through", False),
    )


def leave(code: int) -> NoReturn:
    """End this process with an exit code, faster than Python does.

    As in a normal end, lra waits for threads, calls exit functions and flushes the streams. It does
    not free imported modules, which takes long. Under a profiler or a debugger, which must end the
    process itself, this calls `sys.exit`.
    """
    try:
        sys.stdout.flush()
    except OSError:
        give_up_output()
    if sys.getprofile() is not None or sys.gettrace() is not None:
        sys.exit(code)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def give_up_output() -> None:
    """Discard text that is not printed yet; otherwise Python would report the same error again."""
    null_device = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_device, sys.stdout.fileno())
    os.close(null_device)
