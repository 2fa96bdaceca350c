"""Finds the file system on which a folder lies. Torch-free."""

from pathlib import Path
from typing import NamedTuple

LOCAL_KINDS = frozenset(
    {"btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "reiserfs",
     "squashfs", "tmpfs", "vfat", "xfs", "zfs"}
)  # fmt: skip
"""Kinds of file systems that only one machine mounts; any other kind may be shared."""
MOUNTS = Path("/proc/self/mountinfo")


class Mount(NamedTuple):
    """A mounted file system."""

    kind: str
    point: str

    @property
    def local(self) -> bool:
        """Return whether only this machine mounts it."""
        return self.kind in LOCAL_KINDS

    @property
    def steady(self) -> bool:
        """Return whether all machines get the same inode number for a file, as except with FUSE."""
        return not self.kind.startswith("fuse")


def mount_of(folder: Path, mounts: Path = MOUNTS) -> Mount | None:
    """Return the mounted file system on which a folder lies; None if unknown.

    Args:
        folder: the folder, which may not exist.
        mounts: the file in which Linux lists mounts.
    """
    try:
        table = mounts.read_text()
    except OSError:
        return None
    resolved, mount = folder.resolve(), None
    for line in table.splitlines():
        before, dash, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if not dash or len(fields) < 5 or not kind:
            continue
        point = fields[4].encode().decode("unicode_escape")  # a space is written as \040
        # The longest mount point counts; of two equal ones, the later mount hides the other.
        if resolved.is_relative_to(point) and (mount is None or len(point) >= len(mount.point)):
            mount = Mount(kind[0], point)
    return mount
