"""Files that are whole or absent: temporary name, flush to disk, rename. Torch-free."""

import errno
import os
import shutil
import socket
import uuid
from contextlib import suppress
from pathlib import Path

STALE_S = 300.0
"""A file that nobody has touched for so long was left behind by a process that died."""

_WAYS_OUT = {
    errno.ENOSPC: "free some space there, or choose another results folder",
    errno.EDQUOT: "free some of your quota, or choose another results folder",
    errno.EFBIG: "raise the file size limit (ulimit -f), or choose another results folder",
    errno.EACCES: "give yourself the right to write there, or choose another results folder",
    errno.EPERM: "give yourself the right to write there, or choose another results folder",
    errno.EROFS: "the file system is read-only: choose another results folder",
    errno.ENOTDIR: "a file stands where a folder is needed: move it, or choose another folder",
    errno.EEXIST: "a file stands where a folder is needed: move it, or choose another folder",
}


class Unwritable(OSError):
    """A folder cannot be written; the message names it, the space left and the way out."""


def unwritable(path: Path, error: OSError) -> Unwritable:
    """Return the error that names the path, the space left and the way out."""
    folder = path
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    way_out = _WAYS_OUT.get(error.errno or 0, "choose another results folder")
    return Unwritable(
        error.errno,
        f"cannot write {path}: {error.strerror} ({free:,} bytes free in {folder}); {way_out}. "
        "Everything written before is intact, and the same command goes on from here",
    )


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make(folder: Path) -> None:
    if folder.is_dir():
        return
    _make(folder.parent)
    with suppress(FileExistsError):  # another writer was faster; a plain file fails in the next use
        folder.mkdir()
        _sync_folder(folder.parent)


def make_folder(folder: Path) -> Path:
    """Make a folder and its parents so that they survive a power cut. Raises `Unwritable`."""
    try:
        _make(folder)
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    except OSError as error:
        raise unwritable(folder, error) from error
    return folder


def write_whole(path: Path, data: bytes) -> None:
    """Put `data` at `path` so that every reader, at any moment, sees all of it or none.

    Two writers of one path leave the file of one of them. A writer that is killed leaves at most a
    file under a temporary name, which a later writer in that folder removes.

    Raises:
        Unwritable: full disk, missing right, read-only file system; no partial file is left.
    """
    make_folder(path.parent)
    name = f".{path.name}.{socket.gethostname()}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp"
    temporary = path.parent / name
    try:
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                # The server's clock, where the folder is on a network: comparable with the
                # times of other temporary files, which ours need not be.
                now = os.fstat(file.fileno()).st_mtime
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)
    except OSError as error:
        raise unwritable(path, error) from error
    for left in path.parent.glob(".*.tmp"):
        with suppress(FileNotFoundError):
            if left.stat().st_mtime < now - STALE_S:
                left.unlink()


def remove(path: Path) -> None:
    """Remove a file if it is there. Raises `Unwritable`."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(path, error) from error


def check_writable(folder: Path) -> None:
    """Write, flush and remove a small file. Raises `Unwritable`."""
    make_folder(folder)
    probe = folder / f".probe.{socket.gethostname()}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp"
    try:
        try:
            with probe.open("xb") as file:
                file.write(b"\0" * 65536)
                file.flush()
                os.fsync(file.fileno())
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from error
