"""The folder for temporary files, which somebody may clean while a sweep runs. Torch-free.

`multiprocessing` stores the socket of its fork server in a subfolder. lra makes this subfolder and
locks it; a subfolder without a lock was left by a process that was killed.
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
"""Prefix of the names of these folders; short, as a socket's path has at most 100 bytes."""


def base_folder() -> Path:
    """Return the folder for temporary files; create it if it is missing.

    Raises:
        Unwritable: it cannot be created, or Python finds no folder that it can write to.
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
    """Return the error which says that this folder for temporary files cannot be written."""
    remedy = way_out(error)  # "" if there is none besides TMPDIR
    return Unwritable(
        error.errno,
        f"cannot write to {folder}, the folder for temporary files: {error.strerror or error}; "
        f"{remedy}{remedy and ', or '}set TMPDIR to another folder. {INTACT}",
    )


def process_folder() -> Path:
    """Return the subfolder of this process for temporary files; create it if it is missing.

    Raises:
        Unwritable: it cannot be created.
    """
    process: Any = multiprocessing.current_process()
    known = process._config.get("tempdir")  # where `multiprocessing` itself looks for the folder
    if known is not None and Path(known).is_dir():
        return Path(known)
    parent = base_folder()
    _remove_leftovers(parent)
    lock = None
    while lock is None:  # another process may remove the folder before it is locked
        folder = parent / f"{PREFIX}{uuid4().hex[:8]}"
        try:
            folder.mkdir(mode=0o700)
            lock = hold(folder, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise unwritable(parent, error) from error
    process._config["tempdir"] = str(folder)
    # The process removes it at its end, as multiprocessing does; a forked process does not. The
    # argument True of `rmtree` ignores errors.
    Finalize(None, shutil.rmtree, args=(folder, True), exitpriority=-100)
    return folder


def _remove_leftovers(parent: Path) -> None:
    for leftover in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):
            if leftover.stat().st_uid == os.getuid() and not leftover.is_symlink():
                remove_left(leftover)
