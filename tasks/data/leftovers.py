"""Temporary files and folders of the cache, and what killed writers left of them.

Whoever writes under a temporary name holds a lock on it, which the kernel frees when he ends in any
way, and so do the processes that he started. What nobody holds was left behind.
"""

import fcntl
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

log = logging.getLogger(__name__)

TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}(\.tmp)?")
PARTIAL = ".part"
STALE_S = 7 * 24 * 3600.0
"""After so long a download is no longer gone on with."""


@contextmanager
def temporary_folder(near: Path) -> Iterator[Path]:
    """Yield an empty folder beside `near`, held; it is gone at the end unless it was renamed.

    Not by `tempfile`, which keeps everybody else out: the umask says who may read a shared cache.
    """
    near.parent.mkdir(parents=True, exist_ok=True)
    held = None
    while held is None:  # else somebody took it for a leftover before it was held
        folder = near.parent / f".{near.name}.{uuid4().hex[:8]}"
        folder.mkdir()
        held = hold(folder, os.O_RDONLY)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


@contextmanager
def temporary_file(near: Path) -> Iterator[Path]:
    """Yield an empty file beside `near`, held; it is gone at the end unless it was renamed."""
    near.parent.mkdir(parents=True, exist_ok=True)
    held = None
    while held is None:
        file = near.with_name(f".{near.name}.{uuid4().hex[:8]}.tmp")
        held = hold(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        yield file
    finally:
        file.unlink(missing_ok=True)
        os.close(held)


@contextmanager
def open_to_append(file: Path) -> Iterator[BinaryIO]:
    """Open a file for going on with it, held."""
    held = None
    while held is None:
        held = hold(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, wait=True)
    with os.fdopen(held, "ab") as opened:
        yield opened


def hold(path: Path, flags: int, *, wait: bool = False, sure: bool = False) -> int | None:
    """Return a descriptor with the lock of a file or folder.

    None where somebody else has it, where it is gone, and, if the lock has to be `sure`, where the
    file system knows no such locks.
    """
    try:
        held = os.open(path, flags, 0o666)
    except FileNotFoundError:
        if flags & os.O_CREAT:
            raise
        return None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(held)
        return None
    except OSError as error:
        if sure:
            log.debug("%s cannot be locked and stays: %s", path, error)
            os.close(held)
            return None
    if _is(path, held):
        return held
    os.close(held)
    return None


def _is(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def sweep(root: Path) -> None:
    """Remove what killed writers left in the cache, whatever they prepared.

    What somebody still writes stays, as does a download that was broken off lately: the next one
    goes on with it.

    Args:
        root: The cache. Temporary names stand in it and in its folders, no deeper.
    """
    for folder in [root, *_folders(root)]:
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if not entry.is_symlink() and (
                    TEMPORARY.fullmatch(entry.name) or entry.name.endswith(PARTIAL)
                ):
                    remove_left(Path(entry.path))


def _folders(root: Path) -> list[Path]:
    try:
        with os.scandir(root) as entries:
            return sorted(
                Path(entry.path)
                for entry in entries
                if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")
            )
    except OSError:
        return []


def remove_left(left: Path) -> None:
    """Remove a file or folder under a temporary name, where nobody holds it."""
    held = hold(left, os.O_RDONLY, sure=True)
    if held is None:
        return
    try:
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        elif not left.name.endswith(PARTIAL) or _is_stale(left):
            left.unlink(missing_ok=True)
        if not left.exists():
            log.info("removed a file of a killed process: %s", left)
    finally:
        os.close(held)


def _is_stale(partial: Path) -> bool:
    done = partial.with_name(partial.name.removesuffix(PARTIAL)).exists()
    return done or partial.stat().st_mtime < time.time() - STALE_S
