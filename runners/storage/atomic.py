"""Files that are whole or absent: temporary name, flush to disk, rename. Torch-free."""

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
"""A file that nobody has touched for so long was left by a process that died."""

STORAGE_WORDS = re.compile(
    "|".join(re.escape(os.strerror(number)) for number in STORAGE_ALONE)
    + "|PytorchStreamWriter failed|No usable temporary directory"
)
"""How libraries say it that raise no OSError, and Python itself of its temporary folder."""
_OF_THE_KERNEL = re.compile(r"/(proc|sys|dev(?!/shm/))/")
_NO_STORAGE = (ConnectionError, ProcessLookupError, ChildProcessError, InterruptedError)
_NO_READERS = frozenset({
    "socket", "ssl", "http", "urllib", "urllib3", "asyncio", "selectors", "subprocess",
    "multiprocessing", "threading", "signal",
})  # fmt: skip
"""Modules whose errors without a path are of networks and processes."""

INTACT = "Results written before are intact. Rerun the same command to resume"

log = logging.getLogger(__name__)
_Result = TypeVar("_Result")


class StorageRefused(OSError):
    """Storage cannot be used now; the message names the path and the way out."""

    def __str__(self) -> str:
        """Return the message."""
        return str(self.strerror)


class Unwritable(StorageRefused):
    """A folder cannot be written; the message names it, the space left and the way out."""


def unwritable(path: Path, error: OSError) -> Unwritable:
    """Return the error that names the path, the space left and the way out."""
    if isinstance(error, Unwritable):
        return error
    remedy = way_out(error)
    return Unwritable(
        error.errno,
        f"cannot write {path}: {error.strerror or error}{_free_space(path)}; "
        f"{remedy}{remedy and ', or '}choose another results folder. {INTACT}",
    )


class StorageFault(NamedTuple):
    """An error that is the storage's fault."""

    words: str
    """What to tell: path, reason and way out."""
    may_pass: bool
    """Whether it may be over soon without anybody's doing."""


def fault_of(error: BaseException) -> StorageFault | None:
    """Return how an error is the storage's fault, or None for any other.

    Any error of the system at a path is, whatever its number: nothing is wrong with the work, which
    succeeds once that is mended. The error may be wrapped in others.
    """
    for cause in causes(error):
        if isinstance(cause, StorageRefused):
            return StorageFault(str(cause), may_pass(cause))
        fault = _fault(cause)
        if fault is not None:
            return fault
    return None


def _fault(error: BaseException) -> StorageFault | None:
    name = getattr(error, "filename", None)
    path = os.fsdecode(name) if isinstance(name, str | bytes | os.PathLike) else None
    text = legible(text_of(error))
    if isinstance(error, OSError) and is_fault(error) and _of_storage(error, path):
        passing, remedy = may_pass(error), way_out(error)
    elif said := STORAGE_WORDS.search(text):
        number = next((n for n in STORAGE_ALONE if os.strerror(n) == said[0]), errno.ENOSPC)
        like = OSError(number, said[0])
        passing, remedy = may_pass(like), way_out(like)
    else:
        return None
    free = "" if path is None else _free_space(Path(path))
    return StorageFault(f"{type(error).__name__}: {text}{free}; {remedy}. {INTACT}", passing)


def _of_storage(error: OSError, path: str | None) -> bool:
    """Tell whether a fault of the system is one of storage: it names a path, or read a file."""
    if path is not None:
        return not _OF_THE_KERNEL.match(path)
    if error.errno in STORAGE_ALONE:
        return True
    if error.errno in RIGHTS or error.errno == errno.ENOMEM or isinstance(error, _NO_STORAGE):
        return False  # of signals, of memory, of networks
    frames = [*traceback.walk_tb(error.__traceback__)]
    module = str(frames[-1][0].f_globals.get("__name__", "")) if frames else "socket"
    return module.partition(".")[0] not in _NO_READERS


def _free_space(path: Path) -> str:
    """Return, in brackets, how much room is left where `path` is; nothing where nobody can tell."""
    folder = path
    while not os.path.isdir(folder) and folder != folder.parent:  # noqa: PTH112 - never raises
        folder = folder.parent
    try:
        return f" ({room_left(folder)} in {folder})"
    except OSError:
        return ""


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NO_FOLDER_FLUSH:
            raise
        _say_unflushed(str(error.strerror))
    finally:
        os.close(descriptor)


@lru_cache(maxsize=1)
def _say_unflushed(reason: str) -> None:
    log.warning(
        "the file system of the results cannot flush folders (%s): a power cut may lose the "
        "newest results, and their runs are then repeated",
        reason,
    )


def _written(path: Path, act: Callable[[], _Result]) -> _Result:
    """Return what writing at a path returns, tried again as `persistent`. Raises `Unwritable`."""
    try:
        return persistent(act)
    except OSError as error:
        raise unwritable(path, error) from error


def _make(folder: Path) -> None:
    if folder.is_dir():
        return
    _make(folder.parent)
    with suppress(FileExistsError):  # another writer was faster; a plain file fails in the next use
        folder.mkdir()
        _sync_folder(folder.parent)
    if leads_nowhere(folder):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder))


def make_folder(folder: Path) -> Path:
    """Make a folder and its parents so that they survive a power cut. Raises `Unwritable`."""

    def act() -> None:
        _make(folder)
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))

    _written(folder, act)
    return folder


def write_whole(path: Path, data: bytes | bytearray) -> None:
    """Put `data` at `path` as `write_by` does. Raises `Unwritable`."""
    write_by(path, lambda file: file.write(data))


def write_by(
    path: Path, write: Callable[[BinaryIO], object], *, before: Path | None = None
) -> None:
    """Put what `write` writes at `path` so that every reader, at any moment, sees all or nothing.

    Args:
        path: of the file.
        write: writes into an open file, from its beginning; again, into another, where the file
            system failed.
        before: where what was at `path` goes once the new content is on the disk. In between
            nothing is at `path`; None: it is replaced.

    Two writers of one path leave the file of one of them. A writer that is killed leaves at most a
    file under a temporary name, which a later writer in that folder removes: one of this machine at
    once, one of another when the file is old.

    Raises:
        Unwritable: full disk, missing right, read-only file system; no partial file is left.
    """
    make_folder(path.parent)
    now = _written(path, lambda: _put(path, write, before))
    with suppress(OSError):  # what stays is for the next writer
        for left in path.parent.glob(".*.tmp"):
            with suppress(OSError):
                if writers.has_died(left) or left.stat().st_mtime < now - STALE_S:
                    left.unlink()


def _put(path: Path, write: Callable[[BinaryIO], object], before: Path | None) -> float:
    """Write a file under a temporary name, rename it, and return the server's time."""
    temporary = writers.temporary(path)
    try:
        with temporary.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
            # The server's clock, where the folder is on a network: comparable with the
            # times of other temporary files, which ours need not be.
            now = os.fstat(file.fileno()).st_mtime
        if before is not None:
            with suppress(FileNotFoundError):  # an attempt before this one came so far
                path.replace(before)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            persistent(temporary.unlink, missing_ok=True)
        raise
    _sync_folder(path.parent)
    return now


def refresh(folder: Path) -> None:
    """Have a network file system look at a folder now, whose content it may remember for a minute.

    Opening it does that wherever files are consistent from one closing to the next opening.
    """
    with suppress(OSError):
        os.close(os.open(folder, os.O_RDONLY | os.O_CLOEXEC))


def remove(path: Path) -> None:
    """Remove a file if it is there. Raises `Unwritable`."""
    _written(path, lambda: path.unlink(missing_ok=True))


def rename(path: Path, to: Path) -> None:
    """Rename a file. Raises `Unwritable`."""
    _written(path, lambda: path.rename(to))


def record(path: Path, text: str = "") -> None:
    """Make a file of a few words, which all who make it write alike. Raises `Unwritable`."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK

    def act() -> None:
        file = os.open(path, flags, 0o666)
        try:
            if text:
                os.write(file, text.encode(errors="replace"))
        finally:
            os.close(file)

    _written(path, act)


def check_writable(folder: Path) -> None:
    """Write, flush and remove a small file. Raises `Unwritable`."""
    make_folder(folder)

    def act() -> None:
        probe = writers.temporary(folder / "probe")
        try:
            with probe.open("xb") as file:
                file.write(b"\0" * 65536)
                file.flush()
                os.fsync(file.fileno())
        finally:
            probe.unlink(missing_ok=True)

    _written(folder, act)
