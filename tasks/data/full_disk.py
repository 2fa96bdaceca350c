"""An error that explains a full disk, or a quota that is used up."""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lra.conf.system_errors import room_left

FULL = (errno.ENOSPC, errno.EDQUOT)
WORDS = re.compile("|".join((*(re.escape(os.strerror(number)) for number in FULL),
                             "Not enough disk space", "errno: ?28|os error 28")))  # fmt: skip
"""Messages of libraries about a full disk that come without an error number."""


class StorageFull(OSError):
    """The disk or the quota is full; the message names the folder, its free space and a remedy."""


@contextmanager
def full_disk_explained(folder: Path) -> Iterator[None]:
    """Raise `StorageFull` for every error inside the block that a full disk caused.

    Args:
        folder: The folder that the block writes to.
    """
    try:
        yield
    except StorageFull:
        raise
    except Exception as error:
        code = _full_disk_code(error)
        if code is None:
            raise
        raise StorageFull(
            code,
            f"{os.strerror(code)} while writing to {folder}{_free(folder)}; lra removed the "
            "incomplete file: free some space, or set LRA_DATA to a folder on a larger disk",
        ) from error


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield `error` and, once each, its causes, its contexts and the members of its groups."""
    yielded: dict[int, BaseException] = {}
    waiting: list[BaseException | None] = [error]
    while waiting:
        part = waiting.pop()
        if part is None or id(part) in yielded:
            continue
        yielded[id(part)] = part
        yield part
        waiting += [part.__cause__, part.__context__, *getattr(part, "exceptions", ())]


def _full_disk_code(error: BaseException) -> int | None:
    """Return ENOSPC or EDQUOT if a cause of `error` has its number or its words, else None."""
    for part in causes(error):
        number = getattr(part, "errno", None)
        if isinstance(part, OSError) and number in FULL:
            return int(number)
        if number is None and (match := WORDS.search(str(part))):
            return errno.EDQUOT if match[0] == os.strerror(errno.EDQUOT) else errno.ENOSPC
    return None


def _free(folder: Path) -> str:
    """Return the free space of `folder`, or of its first existing parent; "" if it is unknown."""
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    try:
        return f" ({room_left(folder)})"
    except OSError:
        return ""
