"""For which folder a note was written: one in a copy, or in a folder that was moved, is of another.

A claim, a submission and what a worker says of itself name their folder, their home. Where paths
mean what they meant to the writer, its path tells: a process works where it was started, whatever
was copied from there or moved away. From another machine, or another container, the inode number
tells, which is the same on every machine that sees the folder, and another one in every copy.
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
    """Of the writer: see `mount_view`."""

    @classmethod
    def from_folder(cls, folder: Path) -> "Home":
        """Return what stands for a folder. Raises OSError."""
        path, view = os.path.realpath(folder), mount_view()
        if not path.isprintable():  # no text that a note could hold
            path = view = ""
        return cls(path, folder.stat().st_ino, view)

    @classmethod
    def of_note(cls, node: object) -> "Home | None":
        """Return what a note says; None where it says nothing, as those of older versions."""
        if not isinstance(node, Mapping):
            return None
        path, inode, view = node.get("path"), node.get("inode"), node.get("view")
        if not isinstance(path, str) or "\0" in path or type(inode) is not int:
            return None
        return cls(path, inode, str(view))

    def is_strange(self, folder: Path) -> bool:
        """Tell whether this is certainly another folder."""
        try:
            return not self.is_(folder)
        except OSError:
            return False

    def plain(self) -> dict[str, Any]:
        """Return JSON values."""
        return self._asdict()

    def is_(self, folder: Path) -> bool:
        """Tell whether this is the folder. Raises OSError where that cannot be looked at."""
        status = folder.stat()
        if self.view and self.view == mount_view():
            try:
                there = _seen(self.path)
            except (FileNotFoundError, NotADirectoryError):
                return False  # moved, or removed after it was copied
            except OSError:
                return self.inode == status.st_ino
            if (there.st_dev, there.st_ino) == (status.st_dev, status.st_ino):
                return True
            # One folder of a server that is mounted twice; snapshots of a disk have equal inodes.
            return there.st_ino == status.st_ino and not _on(folder, "local")
        return self.inode == status.st_ino or not _on(folder, "steady")


def _seen(path: str) -> os.stat_result:
    return os.stat(path)  # noqa: PTH116 - as fast as it can be: of each claim


def _on(folder: Path, what: str) -> bool:
    """Tell what is so of the file system under a folder; True where nobody knows it."""
    mount = mount_of(folder)
    return mount is None or bool(getattr(mount, what))


def boot_id() -> str:
    """Return what stands for this machine since it was started, whatever it is called meanwhile.

    Raises:
        OSError: the system is silent.
    """
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@lru_cache(maxsize=1)
def mount_view() -> str:
    """Return where paths mean what they mean here: a boot, and what is mounted; "": unknown."""
    try:
        return f"{boot_id()} {os.readlink('/proc/self/ns/mnt')}"  # noqa: PTH115 - no path
    except OSError:
        return ""
