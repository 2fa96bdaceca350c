"""Temporary files and folders of the cache, and the removal of those that killed processes left.

A process that writes a temporary file holds a lock on it. The kernel frees the lock when this
process, and every process that it started, has ended. A temporary file without a lock is a
leftover.
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
"""Age in seconds from which an incomplete download is not resumed."""


@contextmanager
def temporary_folder(near: Path) -> Iterator[Path]:
    """Yield an empty, locked folder next to `near`; remove it at the end unless it was renamed.

    Unlike folders of `tempfile`, it has the rights of the umask, so that users can share a cache.
    """
    near.parent.mkdir(parents=True, exist_ok=True)
    locked = None
    while locked is None:  # try again if another process removed the folder before it was locked
        folder = near.parent / f".{near.name}.{uuid4().hex[:8]}"
        folder.mkdir()
        locked = hold(folder, os.O_RDONLY)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(locked)


@contextmanager
def temporary_file(near: Path) -> Iterator[Path]:
    """Yield an empty, locked file next to `near`; remove it at the end unless it was renamed."""
    near.parent.mkdir(parents=True, exist_ok=True)
    locked = None
    while locked is None:
        file = near.with_name(f".{near.name}.{uuid4().hex[:8]}.tmp")
        locked = hold(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        yield file
    finally:
        file.unlink(missing_ok=True)
        os.close(locked)


@contextmanager
def open_to_append(file: Path) -> Iterator[BinaryIO]:
    """Open a file for appending, under its lock."""
    locked = None
    while locked is None:
        locked = hold(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, wait=True)
    with os.fdopen(locked, "ab") as opened:
        yield opened


def hold(path: Path, flags: int, *, wait: bool = False, sure: bool = False) -> int | None:
    """Open a file or folder with these `flags` of `os.open`, and lock it.

    Returns its descriptor; None if another process has the lock (unless `wait`) or `path` is gone.
    If the file system has no locks, returns the descriptor without a lock, or None if `sure`.
    """
    try:
        descriptor = os.open(path, flags, 0o666)
    except FileNotFoundError:
        if flags & os.O_CREAT:
            raise
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as error:
        if sure:
            log.debug("lra cannot lock %s, so this file stays: %s", path, error)
            os.close(descriptor)
            return None
    if _is_same_file(path, descriptor):
        return descriptor
    os.close(descriptor)
    return None


def _is_same_file(path: Path, descriptor: int) -> bool:
    """Return whether `path` still names the open file, which another process may have renamed."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def sweep(root: Path) -> None:
    """Remove the temporary files and folders that killed processes left in the cache.

    Files that a process still writes stay, and so do recent incomplete downloads, which can resume.

    Args:
        root: The cache folder. Temporary files are in it and in its subfolders, no deeper.
    """
    for folder in [root, *_folders(root)]:
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if not entry.is_symlink() and (
                    TEMPORARY.fullmatch(entry.name) or entry.name.endswith(PARTIAL)
                ):
                    remove_left(Path(entry.path))


def _folders(root: Path) -> list[Path]:
    """Return the subfolders of `root` that are not hidden; [] if it cannot be read."""
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
    """Remove a temporary file or folder, unless a process has its lock or a download can resume."""
    locked = hold(left, os.O_RDONLY, sure=True)
    if locked is None:
        return
    try:
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        elif not left.name.endswith(PARTIAL) or _is_stale(left):
            left.unlink(missing_ok=True)
        if not left.exists():
            log.info("lra removed %s, which a killed process had left", left)
    finally:
        os.close(locked)


def _is_stale(partial: Path) -> bool:
    """Return whether an incomplete download is useless: complete meanwhile, or too old."""
    done = partial.with_name(partial.name.removesuffix(PARTIAL)).exists()
    return done or partial.stat().st_mtime < time.time() - STALE_S
