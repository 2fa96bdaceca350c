"""Errors of the system at paths: what says something of a file, and what says that storage fails.

A shared file system fails now and then: a server restarts, a handle grows stale, a limit is met.
Such an error says nothing of the file, which is neither damaged nor gone. This module alone decides
which errors these are, by naming those that are not; it tries again what may succeed a moment
later, and gives the way out. Where nothing fails it makes no call more.
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
"""There is no such file."""
_ANSWERS = ABSENT | {
    errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTEMPTY, errno.ENXIO,
    errno.EXDEV, errno.EINVAL, errno.EBADF, errno.EILSEQ, errno.ENOEXEC, errno.E2BIG,
}  # fmt: skip
"""Of what stands at a path, or of how it was asked for."""
_LASTING = frozenset({
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSYS,
    errno.EOPNOTSUPP,
})  # fmt: skip
"""Faults that stay until somebody does something about them."""
STORAGE_ALONE = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE,
    errno.EREMOTEIO, errno.EUCLEAN, errno.ENOLCK, errno.EHOSTDOWN,
)  # fmt: skip
"""What no network and no process says: it needs no path to tell, and its words do."""
RIGHTS = frozenset({errno.EACCES, errno.EPERM})
NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})
"""How a file system refuses a lock because it has none."""
NO_FOLDER_FLUSH = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS})
"""How a file system refuses to flush a folder because it cannot."""

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
    r"Cannot allocate memory|Thread creation failed|can't start new thread"
)
"""Messages of libraries that have no exception for exhausted memory."""

WAITS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 7.0, 10.0, 15.0, 20.0)
"""Pauses between attempts: a minute together."""
_IN_VAIN = 2
"""Attempts that are left where the one before took all of them: a mount that is gone."""

log = logging.getLogger(__name__)
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def out_of_memory(error: BaseException) -> bool:
    """Tell whether an error says that this process gets no more memory."""
    if isinstance(error, RuntimeError | OSError | ImportError):
        return MEMORY_WORDS.search(str(error)) is not None
    return isinstance(error, MemoryError)


def is_fault(error: BaseException) -> bool:
    """Tell whether an error says that the system failed, and nothing of what stands at a path."""
    return isinstance(error, OSError) and error.errno is not None and error.errno not in _ANSWERS


def may_pass(error: BaseException) -> bool:
    """Tell whether an error is a fault that may be over soon without anybody's doing."""
    return is_fault(error) and isinstance(error, OSError) and error.errno not in _LASTING


def way_out(error: OSError, *, reading: bool = False) -> str:
    """Return what to do about a fault; "" for another error that needs no words.

    Args:
        error: it.
        reading: whether something was read; else it was written.
    """
    if reading and error.errno in RIGHTS:
        return "give yourself the right to read it"
    if error.errno in (errno.EEXIST, errno.ENOTDIR, errno.ENOENT) and leads_nowhere(error.filename):
        return "this link points to a missing file: create that file, or remove the link"
    known = WAYS_OUT.get(error.errno or 0)
    return known or (_ANY_OTHER if is_fault(error) else "")


def leads_nowhere(path: object) -> bool:
    """Tell whether a path is a link to something that is not there."""
    if not isinstance(path, str | bytes | os.PathLike):
        return False
    return os.path.islink(path) and not os.path.exists(path)  # noqa: PTH110, PTH114


def room_left(folder: Path) -> str:
    """Return what is free where a folder lies, as a person says it. Raises OSError."""
    words = f"{shutil.disk_usage(folder).free:,} bytes free"
    if not hasattr(os, "statvfs"):
        return words
    found = os.statvfs(folder)
    # A file system without a table of files says 0 of 0.
    if found.f_files and not found.f_favail:
        return f"{NO_INODES}: remove some files; {words}"
    return words


class _Patience:
    """Whether the last attempts of this process were all in vain."""

    in_vain = False


def persistent(
    act: Callable[_Given, _Result], *given: _Given.args, **options: _Given.kwargs
) -> _Result:
    """Return `act(...)`, called again for up to a minute while it fails with what may pass.

    Raises whatever it raises; of a fault that stays, the last error.
    """
    try:
        return act(*given, **options)
    except OSError as error:
        if not may_pass(error):
            raise
        fault = error
    waits = WAITS_S[:_IN_VAIN] if _Patience.in_vain else WAITS_S
    log.warning("%s; it is tried again for up to %.0f s", reason(fault), sum(waits))
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
    try:
        return os.stat(path, follow_symlinks=follow)  # noqa: PTH116 - as fast as it can be
    except OSError as error:
        if is_fault(error):
            raise
        return None


def lexists(path: str | os.PathLike[str]) -> bool:
    """Tell whether anything stands at a path, a link to nothing included.

    Unlike `os.path.lexists`, a fault is no absence. Raises OSError.
    """
    return persistent(_status, path, follow=False) is not None


def exists(path: str | os.PathLike[str]) -> bool:
    """Tell whether anything stands at a path, behind links. Raises OSError at a fault."""
    return persistent(_status, path, follow=True) is not None


def is_file(path: str | os.PathLike[str]) -> bool:
    """Tell whether a file stands at a path, or a link to one. Raises OSError at a fault."""
    status = persistent(_status, path, follow=True)
    return status is not None and stat.S_ISREG(status.st_mode)
