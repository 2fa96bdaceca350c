"""Decides whether a note was written for this folder; notes in a copied folder are ignored.

A claim, a submission and a worker's report name their home: the folder that they belong to. If
reader and writer have the same mounts, the paths of the two folders are compared. On another
machine or in another container, inode numbers are compared: all machines that mount a folder get
the same number, and a copy has another one.
"""

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from lra.runners.storage.mounts import mount_of

COPIED = "which this folder is a copy of, or was moved from"


class Home(NamedTuple):
    """The folder for which a note was written."""

    path: str
    inode: int
    view: str
    """Identifies the mounts of the writer: see `mount_view`; "" if unknown."""

    @classmethod
    def from_folder(cls, folder: Path) -> "Home":
        """Return the home that identifies `folder`. Raises OSError."""
        path, view = os.path.realpath(folder), mount_view()
        if not path.isprintable():  # a note cannot store it, so only inode numbers are compared
            path = view = ""
        return cls(path, folder.stat().st_ino, view)

    @classmethod
    def of_note(cls, node: object) -> "Home | None":
        """Return the home in the JSON of a note; None if it has none (an old version wrote it)."""
        if not isinstance(node, Mapping):
            return None
        path, inode, view = node.get("path"), node.get("inode"), node.get("view")
        if not isinstance(path, str) or "\0" in path or type(inode) is not int:
            return None
        return cls(path, inode, str(view))

    def is_strange(self, folder: Path) -> bool:
        """Return whether this home is certainly another folder; False if this is unknown."""
        try:
            return not self.is_(folder)
        except OSError:
            return False

    def plain(self) -> dict[str, Any]:
        """Return the home as a mapping of JSON values."""
        return self._asdict()

    def is_(self, folder: Path) -> bool:
        """Return whether this home is `folder`. Raises OSError if the folder cannot be read."""
        status = folder.stat()
        if self.view and self.view == mount_view():
            try:
                home_status = _stat(self.path)
            except (FileNotFoundError, NotADirectoryError):
                return False  # the home was moved, or removed after it was copied
            except OSError:
                return self.inode == status.st_ino
            if (home_status.st_dev, home_status.st_ino) == (status.st_dev, status.st_ino):
                return True
            # A network folder may be mounted twice, with one inode number on two devices. On local
            # disks, equal numbers on two devices are snapshots, that is, copies.
            return home_status.st_ino == status.st_ino and not _mount_is(folder, "local")
        # On FUSE file systems inode numbers may change, so a different number proves nothing.
        return self.inode == status.st_ino or not _mount_is(folder, "steady")


def _stat(path: str) -> os.stat_result:
    return os.stat(path)  # noqa: PTH116 - faster than Path.stat, and called for each claim


def _mount_is(folder: Path, attribute: str) -> bool:
    """Return `local` or `steady` (the `attribute`) of the mount of a folder; True if unknown."""
    mount = mount_of(folder)
    return mount is None or bool(getattr(mount, attribute))


def boot_id() -> str:
    """Return the identifier that the kernel has had since the machine was started.

    Raises:
        OSError: the system has no such identifier.
    """
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@lru_cache(maxsize=1)
def mount_view() -> str:
    """Return the boot and the mount namespace in which our paths are valid; "" if unknown."""
    try:
        return f"{boot_id()} {os.readlink('/proc/self/ns/mnt')}"  # noqa: PTH115 - no path
    except OSError:
        return ""
