"""Tells for which folder a note was written, so that notes in a copied or moved folder are ignored.

A claim, a submission and a worker's report name the folder that they belong to: their home. If the
reader has the same mounts as the writer, the paths of the two folders are compared: a process goes
on working where it was started, although that folder was copied. From another machine or container,
inode numbers are compared: every machine that mounts a folder gets the same one, and every copy has
another one.
"""

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from lra.runners.storage.mounts import mount_of

COPIED = "which this folder is a copy of, or was moved from"


class Home(NamedTuple):
    """The folder that a note was written for."""

    path: str
    inode: int
    view: str
    """The writer's mounts: see `mount_view`; "": unknown."""

    @classmethod
    def from_folder(cls, folder: Path) -> "Home":
        """Return the home that identifies `folder`. Raises OSError."""
        path, view = os.path.realpath(folder), mount_view()
        if not path.isprintable():  # a note cannot store it: only the inode number will be compared
            path = view = ""
        return cls(path, folder.stat().st_ino, view)

    @classmethod
    def of_note(cls, node: object) -> "Home | None":
        """Return the home in a note's JSON; None if it has none, as in notes of older versions."""
        if not isinstance(node, Mapping):
            return None
        path, inode, view = node.get("path"), node.get("inode"), node.get("view")
        if not isinstance(path, str) or "\0" in path or type(inode) is not int:
            return None
        return cls(path, inode, str(view))

    def is_strange(self, folder: Path) -> bool:
        """Tell whether this home is certainly another folder; False if that is unknown."""
        try:
            return not self.is_(folder)
        except OSError:
            return False

    def plain(self) -> dict[str, Any]:
        """Return JSON values."""
        return self._asdict()

    def is_(self, folder: Path) -> bool:
        """Tell whether this home is `folder`. Raises OSError if the folder cannot be read."""
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
        # File systems of programs (FUSE) give a folder any number, so another one proves nothing.
        return self.inode == status.st_ino or not _mount_is(folder, "steady")


def _stat(path: str) -> os.stat_result:
    return os.stat(path)  # noqa: PTH116 - faster than Path.stat, and called for each claim


def _mount_is(folder: Path, attribute: str) -> bool:
    """Return an attribute of the mount under a folder, `local` or `steady`; True if unknown."""
    mount = mount_of(folder)
    return mount is None or bool(getattr(mount, attribute))


def boot_id() -> str:
    """Return the kernel's identifier of this machine since its last start.

    Raises:
        OSError: the system has none.
    """
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@lru_cache(maxsize=1)
def mount_view() -> str:
    """Return the boot and the mount namespace in which our paths are valid; "" if unknown."""
    try:
        return f"{boot_id()} {os.readlink('/proc/self/ns/mnt')}"  # noqa: PTH115 - no path
    except OSError:
        return ""
