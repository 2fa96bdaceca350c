"""Standard output and errors that may be closed, full, or read by nobody."""

import atexit
import io
import os
import sys
import threading
from contextlib import suppress
from typing import Any, NoReturn


class OutputError(OSError):
    """What was to be printed could not be."""


class _Output(io.FileIO):
    """Standard output, whose errors say what it is."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            what = f"cannot write to the standard output: {error.strerror}"
            raise OutputError(error.errno, what) from error


class _Errors(io.FileIO):
    """Standard error: where nobody can read it, the exit code still says how all of it ended."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def settle() -> None:
    """Make sure of both; where one is closed, what goes there is dropped.

    A closed one is opened, as the next file of all would have its number, and be written into.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - to the end of the process
    # Names of files need be no text.
    sys.stdout = _stream(_Output, 1, sys.stdout)
    sys.stderr = _stream(_Errors, 2, sys.stderr)


def _stream(kind: type[io.FileIO], number: int, before: Any) -> io.TextIOWrapper:
    return io.TextIOWrapper(
        io.BufferedWriter(kind(number, "w", closefd=False)),
        encoding=getattr(before, "encoding", "utf-8"),
        errors="backslashreplace",
        line_buffering=number == 2 or getattr(before, "line_buffering", False),
        write_through=getattr(before, "write_through", False),
    )


def leave(code: int) -> NoReturn:
    """End this process as Python does, without taking apart all that was imported.

    Threads are waited for, exit functions run, and what is left is printed, after the message
    about how it ended. A profiler or a debugger around `lra` ends it.
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
    """Drop what is still to be printed: Python would complain again at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
