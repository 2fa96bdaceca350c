"""Files that are whole or absent: temporary name, flush to disk, rename. Torch-free."""

import errno
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

from runners.records import legible, text_of
from runners.storage import writers
from tasks.data.full_disk import causes

STALE_S = 300.0
"""A file that nobody has touched for so long was left by a process that died."""

WAYS_OUT = {
    errno.ENOSPC: "free some space there",
    errno.EDQUOT: "free some of your quota",
    errno.EFBIG: "raise the file size limit (ulimit -f)",
    errno.EACCES: "give yourself the right to write there",
    errno.EPERM: "give yourself the right to write there",
    errno.EROFS: "mount that file system for writing",
    errno.EIO: "look after that disk (see dmesg)",
    errno.ESTALE: "mount that folder again",
    errno.ENOTDIR: "a file stands where a folder is needed: move it",
    errno.EEXIST: "a file stands where a folder is needed: move it",
    errno.EISDIR: "a folder stands where a file is needed: move it",
    errno.ENXIO: "a pipe or a socket stands where a file is needed: move it",
    errno.ELOOP: "a link leads in circles: remove it",
}
_REFUSALS = WAYS_OUT.keys() - {
    errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENXIO, errno.ELOOP,
}  # fmt: skip
_RIGHTS = {errno.EACCES, errno.EPERM}
"""Of files only where the error names one: signals and sockets are refused with these, too."""
STORAGE_WORDS = re.compile(
    "|".join(re.escape(os.strerror(number)) for number in sorted(_REFUSALS - _RIGHTS))
    + "|PytorchStreamWriter failed|No usable temporary directory"
)
"""How libraries say it that raise no OSError, and Python itself of its temporary folder."""


INTACT = "Everything written before is intact, and the same command goes on from here"


class Unwritable(OSError):
    """A folder cannot be written; the message names it, the space left and the way out."""


def unwritable(path: Path, error: OSError) -> Unwritable:
    """Return the error that names the path, the space left and the way out."""
    way_out = WAYS_OUT.get(error.errno or 0, "")
    return Unwritable(
        error.errno,
        f"cannot write {path}: {error.strerror or error}{_free_space(path)}; "
        f"{way_out}{way_out and ', or '}choose another results folder. {INTACT}",
    )


def storage_fault(error: BaseException) -> str | None:
    """Return what to tell about an error that is the storage's fault, or None for any other.

    No space, no right, an exhausted quota, a read-only or a failing disk: nothing is wrong with the
    work, which succeeds once that is mended. The error may be wrapped in others.
    """
    for cause in causes(error):
        if isinstance(cause, Unwritable):
            return str(cause.strerror)
        reason = _refused(cause)
        if reason is not None:
            return reason
    return None


def _refused(error: BaseException) -> str | None:
    number = error.errno if isinstance(error, OSError) else None
    name = getattr(error, "filename", None)
    path = os.fsdecode(name) if isinstance(name, str | bytes | os.PathLike) else None
    text = legible(text_of(error))
    if number not in _REFUSALS or (number in _RIGHTS and path is None):
        if not STORAGE_WORDS.search(text):
            return None
        number = errno.ENOSPC
    free = "" if path is None else _free_space(Path(path))
    return f"{type(error).__name__}: {text}{free}; {WAYS_OUT[number]}. {INTACT}"


def _free_space(path: Path) -> str:
    """Return, in brackets, how much room is left where `path` is; nothing where nobody can tell."""
    folder = path
    while not os.path.isdir(folder) and folder != folder.parent:  # noqa: PTH112 - never raises
        folder = folder.parent
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return ""
    return f" ({free:,} bytes free in {folder})"


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
    file under a temporary name, which a later writer in that folder removes: one of this machine at
    once, one of another when the file is old.

    Raises:
        Unwritable: full disk, missing right, read-only file system; no partial file is left.
    """
    make_folder(path.parent)
    temporary = writers.temporary(path)
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
            if writers.has_died(left) or left.stat().st_mtime < now - STALE_S:
                left.unlink()


def refresh(folder: Path) -> None:
    """Have a network file system look at a folder now, whose content it may remember for a minute.

    Opening it does that wherever files are consistent from one closing to the next opening.
    """
    with suppress(OSError):
        os.close(os.open(folder, os.O_RDONLY | os.O_CLOEXEC))


def remove(path: Path) -> None:
    """Remove a file if it is there. Raises `Unwritable`."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(path, error) from error


def check_writable(folder: Path) -> None:
    """Write, flush and remove a small file. Raises `Unwritable`."""
    make_folder(folder)
    probe = writers.temporary(folder / "probe")
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
