"""Writes files so that they are whole or absent: temporary name, flush, rename. Torch-free."""

import errno
import logging
import os
import re
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

from lra.conf.system_errors import (
    NO_FOLDER_FLUSH,
    RIGHTS,
    STORAGE_ALONE,
    is_fault,
    leads_nowhere,
    may_pass,
    persistent,
    room_left,
    way_out,
)
from lra.runners.records import legible, text_of
from lra.runners.storage import writers
from lra.tasks.data.full_disk import causes

STALE_S = 300.0
"""A temporary file or claim that nobody touched for so many seconds was left by a dead process."""

STORAGE_WORDS = re.compile(
    "|".join(re.escape(os.strerror(number)) for number in STORAGE_ALONE)
    + "|PytorchStreamWriter failed|No usable temporary directory"
)
"""Texts of storage errors that are no OSError: those of libraries such as PyTorch, and of Python if
it finds no folder for temporary files."""
_KERNEL_PATH = re.compile(r"/(proc|sys|dev(?!/shm/))/")  # /dev/shm is memory that stores files
_NO_STORAGE = (ConnectionError, ProcessLookupError, ChildProcessError, InterruptedError)
_NO_READERS = frozenset({
    "socket", "ssl", "http", "urllib", "urllib3", "asyncio", "selectors", "subprocess",
    "multiprocessing", "threading", "signal",
})  # fmt: skip
"""Errors without a path in these modules come from networks and processes, not from storage."""

INTACT = "Earlier results are intact. Rerun the same command to resume"

log = logging.getLogger(__name__)
_Result = TypeVar("_Result")


class StorageRefused(OSError):
    """Raised if storage cannot be used now; the message names the path and what to do."""

    def __str__(self) -> str:
        """Return the message."""
        return str(self.strerror)


class Unwritable(StorageRefused):
    """Raised if a path cannot be written; the message names it, the free space and what to do."""


def unwritable(path: Path, error: OSError) -> Unwritable:
    """Return the error that names the path, the free space and what to do."""
    if isinstance(error, Unwritable):
        return error
    remedy = way_out(error)  # "" if there is none besides another folder
    return Unwritable(
        error.errno,
        f"cannot write {path}: {error.strerror or error}{_describe_space(path)}; "
        f"{remedy}{remedy and ', or '}choose another results folder. {INTACT}",
    )


class StorageFault(NamedTuple):
    """An error that storage caused."""

    words: str
    """The message: path, reason and what to do."""
    may_pass: bool
    """Whether the problem may disappear by itself."""


def fault_of(error: BaseException) -> StorageFault | None:
    """Return the fault if storage caused `error` or an error that it wraps; None otherwise.

    Every system error at a path counts, because the same run succeeds after storage is repaired.
    """
    for cause in causes(error):
        if isinstance(cause, StorageRefused):
            return StorageFault(str(cause), may_pass(cause))
        fault = _classify_error(cause)
        if fault is not None:
            return fault
    return None


def _classify_error(error: BaseException) -> StorageFault | None:
    """Return the fault if storage caused exactly this error; None otherwise."""
    name = getattr(error, "filename", None)
    path = os.fsdecode(name) if isinstance(name, str | bytes | os.PathLike) else None
    text = legible(text_of(error))
    if isinstance(error, OSError) and is_fault(error) and _is_storage_error(error, path):
        passing, remedy = may_pass(error), way_out(error)
    elif match := STORAGE_WORDS.search(text):  # texts of libraries have no number: a full disk
        number = next((n for n in STORAGE_ALONE if os.strerror(n) == match[0]), errno.ENOSPC)
        equivalent = OSError(number, match[0])
        passing, remedy = may_pass(equivalent), way_out(equivalent)
    else:
        return None
    free = "" if path is None else _describe_space(Path(path))
    return StorageFault(f"{type(error).__name__}: {text}{free}; {remedy}. {INTACT}", passing)


def _is_storage_error(error: OSError, path: str | None) -> bool:
    """Return whether storage caused a system error: it names a path, or a file was being read."""
    if path is not None:
        return not _KERNEL_PATH.match(path)
    if error.errno in STORAGE_ALONE:
        return True
    if error.errno in RIGHTS or error.errno == errno.ENOMEM or isinstance(error, _NO_STORAGE):
        return False  # missing rights or memory, a network, or a signal
    # Of an error without a path, such as EIO while reading, the module that raised it decides.
    frames = [*traceback.walk_tb(error.__traceback__)]
    # An error that was never raised counts as one of a network.
    module = str(frames[-1][0].f_globals.get("__name__", "")) if frames else "socket"
    return module.partition(".")[0] not in _NO_READERS


def _describe_space(path: Path) -> str:
    """Return how much space is free at `path`, as a text in brackets; "" if unknown."""
    folder = path
    while not os.path.isdir(folder) and folder != folder.parent:  # noqa: PTH112 - never raises
        folder = folder.parent
    try:
        return f" ({room_left(folder)} in {folder})"
    except OSError:
        return ""


def _sync_folder(folder: Path) -> None:
    """Flush the names in a folder to disk; warn once if its file system cannot do that."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NO_FOLDER_FLUSH:
            raise
        _warn_unflushed(str(error.strerror))
    finally:
        os.close(descriptor)


@lru_cache(maxsize=1)
def _warn_unflushed(reason: str) -> None:
    log.warning(
        "the file system of the results cannot flush folders (%s), so a power cut may lose the "
        "newest results; rerun the sweep to repeat their runs",
        reason,
    )


def _retry_writing(path: Path, act: Callable[[], _Result]) -> _Result:
    """Return the result of `act`, which writes at `path`; `persistent` repeats it after errors.

    Raises:
        Unwritable: writing failed; the message names `path`.
    """
    try:
        return persistent(act)
    except OSError as error:
        raise unwritable(path, error) from error


def _make_recursively(folder: Path) -> None:
    """Create a folder and its parents, and flush each to disk. Raises OSError."""
    if folder.is_dir():
        return
    _make_recursively(folder.parent)
    with suppress(FileExistsError):  # another writer was faster; `make_folder` finds a plain file
        folder.mkdir()
        _sync_folder(folder.parent)
    if leads_nowhere(folder):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder))


def make_folder(folder: Path) -> Path:
    """Create a folder and its parents so that they survive a power cut. Raises `Unwritable`."""

    def act() -> None:
        _make_recursively(folder)
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))

    _retry_writing(folder, act)
    return folder


def write_whole(path: Path, data: bytes | bytearray) -> None:
    """Write `data` to the file `path` as `write_by` does. Raises `Unwritable`."""
    write_by(path, lambda file: file.write(data))


def write_by(
    path: Path, write: Callable[[BinaryIO], object], *, before: Path | None = None
) -> None:
    """Write a file so that readers find either the whole file or none of it at any moment.

    Args:
        path: the file.
        write: function that writes the content into an open file. If the file system fails for a
            moment, it is called again with another file.
        before: path to which the previous file is moved when the new content is on the disk; for a
            moment there is no file at `path`. None: the previous file is replaced.

    If two processes write the same path, the file of one of them remains. If a writer is killed, a
    temporary file may remain. A later writer in the folder removes it: at once if it was on this
    machine, otherwise when the file is `STALE_S` seconds old.

    Raises:
        Unwritable: the disk is full, a right is missing, or the file system is read-only.
    """
    make_folder(path.parent)
    now = _retry_writing(path, lambda: _write_and_rename(path, write, before))
    with suppress(OSError):  # the next writer tries to remove what stays
        for temporary in path.parent.glob(".*.tmp"):
            with suppress(OSError):
                if writers.has_died(temporary) or temporary.stat().st_mtime < now - STALE_S:
                    temporary.unlink()


def _write_and_rename(
    path: Path, write: Callable[[BinaryIO], object], before: Path | None
) -> float:
    """Write a file under a temporary name and rename it; return the time on the file server."""
    temporary = writers.temporary(path)
    try:
        with temporary.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
            # In a network folder this is the clock of the server, which also sets the times of
            # other temporary files; the clock of this machine may differ.
            now = os.fstat(file.fileno()).st_mtime
        if before is not None:
            with suppress(FileNotFoundError):  # there was no file, or an earlier attempt moved it
                path.replace(before)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            persistent(temporary.unlink, missing_ok=True)
        raise
    _sync_folder(path.parent)
    return now


def refresh(folder: Path) -> None:
    """Make a network file system read the listing of a folder again; it may have an old one.

    Opening the folder suffices on systems with close-to-open consistency, such as NFS.
    """
    with suppress(OSError):
        os.close(os.open(folder, os.O_RDONLY | os.O_CLOEXEC))


def remove(path: Path) -> None:
    """Remove a file if it exists. Raises `Unwritable`."""
    _retry_writing(path, lambda: path.unlink(missing_ok=True))


def rename(path: Path, to: Path) -> None:
    """Rename a file. Raises `Unwritable`."""
    _retry_writing(path, lambda: path.rename(to))


def record(path: Path, text: str = "") -> None:
    """Write a small file directly, because all writers write the same text. Raises `Unwritable`."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe must not block

    def act() -> None:
        file = os.open(path, flags, 0o666)
        try:
            if text:
                os.write(file, text.encode(errors="replace"))
        finally:
            os.close(file)

    _retry_writing(path, act)


def check_writable(folder: Path) -> None:
    """Test a folder: write, flush and remove a small file in it. Raises `Unwritable`."""
    make_folder(folder)

    def act() -> None:
        probe = writers.temporary(folder / "probe")
        try:
            with probe.open("xb") as file:
                file.write(b"\0" * 65536)  # a full disk may still have room for a few bytes
                file.flush()
                os.fsync(file.fileno())
        finally:
            probe.unlink(missing_ok=True)

    _retry_writing(folder, act)
