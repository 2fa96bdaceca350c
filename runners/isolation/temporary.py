"""The folder for temporary files, which somebody may clean while a sweep runs. Torch-free.

`multiprocessing` keeps the socket of its fork server in a folder there. It is one of ours, held by
a lock as those of the cache are: what nobody holds was left by a process that was killed.
"""

import errno
import multiprocessing
import os
import shutil
import tempfile
from contextlib import suppress
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any
from uuid import uuid4

from lra.conf.system_errors import persistent, way_out
from lra.runners.storage.atomic import INTACT, Unwritable
from lra.tasks.data.leftovers import hold, remove_left

PREFIX = ".lra-"
"""Short: the path of a socket has a hundred bytes at most."""


def base_folder() -> Path:
    """Return the folder for temporary files; create it where it is missing.

    Raises:
        Unwritable: it cannot be made, or none of those that Python knows can be written.
    """
    try:
        folder = Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise Unwritable(
            errno.ENOSPC,
            f"{error.strerror}: free some space there, or set TMPDIR to a folder that you can "
            f"write to. {INTACT}",
        ) from error
    try:
        persistent(folder.mkdir, parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from error
    return folder


def unwritable(folder: Path, error: OSError) -> Unwritable:
    """Return the error that names the folder for temporary files and the way out."""
    remedy = way_out(error)
    return Unwritable(
        error.errno,
        f"cannot write to {folder}, the folder for temporary files: {error.strerror or error}; "
        f"{remedy}{remedy and ', or '}set TMPDIR to another folder. {INTACT}",
    )


def process_folder() -> Path:
    """Return the folder of this process there; create it where it is missing.

    Raises:
        Unwritable: it cannot be made.
    """
    process: Any = multiprocessing.current_process()
    there = process._config.get("tempdir")
    if there is not None and Path(there).is_dir():
        return Path(there)
    parent = base_folder()
    _remove_left(parent)
    held = None
    while held is None:  # else somebody took it for a leftover before it was held
        folder = parent / f"{PREFIX}{uuid4().hex[:8]}"
        try:
            folder.mkdir(mode=0o700)
            held = hold(folder, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise unwritable(parent, error) from error
    process._config["tempdir"] = str(folder)
    # At its end, as multiprocessing removes what it makes itself; a fork leaves it to its parent.
    Finalize(None, shutil.rmtree, args=(folder, True), exitpriority=-100)
    return folder


def _remove_left(parent: Path) -> None:
    for left in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):
            if left.stat().st_uid == os.getuid() and not left.is_symlink():
                remove_left(left)
