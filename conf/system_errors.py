"""Errors of the operating system: does an error describe a file, or is it a fault of the storage?

A shared file system fails now and then: a server restarts, a handle grows stale, a limit is
reached. Such an error, a *fault*, does not mean that the file is damaged or gone. This module
decides which errors are faults: all that `_ANSWERS` does not list. It repeats a call that may
succeed a moment later, and tells the user what to do. Without a fault, it adds no system calls.
"""

import errno
import logging
import os
import re
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR})
"""Errors that mean: there is no such file."""
_ANSWERS = ABSENT | {
    errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTEMPTY, errno.ENXIO,
    errno.EXDEV, errno.EINVAL, errno.EBADF, errno.EILSEQ, errno.ENOEXEC, errno.E2BIG,
}  # fmt: skip
"""Errors that describe what is at a path, or a wrong argument of the call: no faults."""
_LASTING = frozenset({
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSYS,
    errno.EOPNOTSUPP,
})  # fmt: skip
"""Faults that last until a person acts, so that repeating the call is useless."""
STORAGE_ALONE = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE,
    errno.EREMOTEIO, errno.EUCLEAN, errno.ENOLCK, errno.EHOSTDOWN,
)  # fmt: skip
"""Errors that only storage raises (no network or process does), so they need no path as proof."""
RIGHTS = frozenset({errno.EACCES, errno.EPERM})
NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})
"""Errors of a file system that has no locks."""
NO_FOLDER_FLUSH = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS})
"""Errors of a file system that cannot flush a folder."""

WAYS_OUT = {
    errno.ENOSPC: "free some space there",
    errno.EDQUOT: "free some of your quota",
    errno.EFBIG: "raise the file size limit (ulimit -f)",
    errno.EACCES: "give yourself the right to write there",
    errno.EPERM: "give yourself the right to write there",
    errno.EROFS: "mount that file system for writing",
    errno.EIO: "check that disk for faults (see dmesg)",
    errno.ESTALE: "mount that folder again",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "close some of the files that this machine has open",
    errno.ENOMEM: "free some memory of this machine",
    errno.ENOTDIR: "there is a file where a folder is needed: move it",
    errno.EEXIST: "there is a file where a folder is needed: move it",
    errno.EISDIR: "there is a folder where a file is needed: move it",
    errno.ENXIO: "there is a pipe or a socket where a file is needed: move it",
    errno.ELOOP: "links point to each other in a circle: remove one",
}
NO_INODES = "no inodes free"
_ANY_OTHER = "see whether that file system and its server work (mount, dmesg)"

MEMORY_WORDS = re.compile(
    r"can't allocate memory|out of memory|bad_alloc|CUBLAS_STATUS_ALLOC_FAILED|"
    r"Cannot allocate memory|Thread creation failed|can't start new thread|pthread_create failed|"
    r"malloc failed|could not create a (primitive|memory)|failed to map segment from shared object"
)
"""Messages of libraries that have no exception for exhausted memory."""

WAITS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 7.0, 10.0, 15.0, 20.0)
"""Seconds between attempts; together a minute."""
_IN_VAIN = 2
"""Number of attempts if all attempts for the previous call failed, as after a lost mount."""

log = logging.getLogger(__name__)
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def out_of_memory(error: BaseException) -> bool:
    """Return whether `error` means that this process gets no more memory."""
    if isinstance(error, RuntimeError | OSError | ImportError):
        return MEMORY_WORDS.search(str(error)) is not None
    return isinstance(error, MemoryError)


def is_fault(error: BaseException) -> bool:
    """Return whether `error` is a fault of the system, which says nothing about the file."""
    return isinstance(error, OSError) and error.errno is not None and error.errno not in _ANSWERS


def may_pass(error: BaseException) -> bool:
    """Return whether `error` is a fault that may end by itself soon."""
    return is_fault(error) and isinstance(error, OSError) and error.errno not in _LASTING


def way_out(error: OSError, *, reading: bool = False) -> str:
    """Return advice for a user about a fault; "" for an error without a known remedy.

    Args:
        error: The error.
        reading: Whether the failed call read a file; otherwise it wrote one.
    """
    if reading and error.errno in RIGHTS:
        return "give yourself the right to read it"
    if error.errno in (errno.EEXIST, errno.ENOTDIR, errno.ENOENT) and leads_nowhere(error.filename):
        return "this link points to a missing file: create that file, or remove the link"
    known = WAYS_OUT.get(error.errno or 0)
    return known or (_ANY_OTHER if is_fault(error) else "")


def leads_nowhere(path: object) -> bool:
    """Return whether `path` is a link whose target is missing."""
    if not isinstance(path, str | bytes | os.PathLike):
        return False
    return os.path.islink(path) and not os.path.exists(path)  # noqa: PTH110, PTH114


def room_left(folder: Path) -> str:
    """Return a text with the free bytes of the file system of `folder`. Raises OSError."""
    words = f"{shutil.disk_usage(folder).free:,} bytes free"
    if not hasattr(os, "statvfs"):
        return words
    status = os.statvfs(folder)
    # File systems without a table of inodes report 0 free of 0.
    if status.f_files and not status.f_favail:
        return f"{NO_INODES}: remove some files; {words}"
    return words


class _Patience:
    """Remembers whether all attempts of the last repeated call of this process failed."""

    in_vain = False


def persistent(
    act: Callable[_Given, _Result], *given: _Given.args, **options: _Given.kwargs
) -> _Result:
    """Return `act(*given, **options)`; repeat the call for up to a minute after a passing fault.

    Raises any other error of `act` at once, and the last fault if it does not end.
    """
    try:
        return act(*given, **options)
    except OSError as error:
        if not may_pass(error):
            raise
        fault = error
    waits = WAITS_S[:_IN_VAIN] if _Patience.in_vain else WAITS_S
    log.warning("%s; the call is repeated for up to %.0f s", reason(fault), sum(waits))
    for wait in waits:
        time.sleep(wait)
        try:
            result = act(*given, **options)
        except OSError as error:
            if not may_pass(error):
                raise
            fault = error
        else:
            _Patience.in_vain = False
            return result
    _Patience.in_vain = True
    raise fault


def reason(error: OSError) -> str:
    """Return an error's reason and path."""
    path = error.filename
    return f"{error.strerror or error}{f': {path}' if path else ''}"


def _status(path: str | os.PathLike[str], follow: bool) -> os.stat_result | None:
    """Return the status of `path`, or None if it does not exist; `follow` a link to its target."""
    try:
        return os.stat(path, follow_symlinks=follow)  # noqa: PTH116 - as fast as it can be
    except OSError as error:
        if is_fault(error):
            raise
        return None


def lexists(path: str | os.PathLike[str]) -> bool:
    """Return whether `path` exists; a link counts even if its target is missing.

    Raises OSError for a fault, for which `os.path.lexists` would return False.
    """
    return persistent(_status, path, follow=False) is not None


def exists(path: str | os.PathLike[str]) -> bool:
    """Return whether `path`, or the target of a link, exists. Raises OSError for a fault."""
    return persistent(_status, path, follow=True) is not None


def is_file(path: str | os.PathLike[str]) -> bool:
    """Return whether `path` is a file or a link to one. Raises OSError for a fault."""
    status = persistent(_status, path, follow=True)
    return status is not None and stat.S_ISREG(status.st_mode)
