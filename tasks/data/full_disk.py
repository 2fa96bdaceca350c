"""A storage that refuses to be written, explained: no space, or a quota that is used up."""

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
"""How libraries say it that raise no OSError of their own, or one without its number."""


class StorageFull(OSError):
    """No room is left; the message names the folder, what is free there and the way out."""


@contextmanager
def full_disk_explained(folder: Path) -> Iterator[None]:
    """Turn whatever a full disk becomes, under any wrapping, into `StorageFull`.

    Args:
        folder: What is written to.
    """
    try:
        yield
    except StorageFull:
        raise
    except Exception as error:
        code = _cause(error)
        if code is None:
            raise
        raise StorageFull(
            code,
            f"{os.strerror(code)} while writing to {folder}{_free(folder)}: the incomplete file "
            "was removed; free some space, or set LRA_DATA to a folder on a larger disk",
        ) from error


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and, each once, all that it was raised from, while handling, or as a group."""
    seen: dict[int, BaseException] = {}
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen[id(each)] = each
        yield each
        waiting += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]


def _cause(error: BaseException) -> int | None:
    """Return the number of the refusal that an error was made of, None for any other error."""
    for each in causes(error):
        number = getattr(each, "errno", None)
        if isinstance(each, OSError) and number in FULL:
            return int(number)
        if number is None and (match := WORDS.search(str(each))):
            return errno.EDQUOT if match[0] == os.strerror(errno.EDQUOT) else errno.ENOSPC
    return None


def _free(folder: Path) -> str:
    """Return, in brackets, how much room is left; nothing where nobody can tell."""
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    try:
        return f" ({room_left(folder)})"
    except OSError:
        return ""
