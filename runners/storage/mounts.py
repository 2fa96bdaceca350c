"""What a folder lies on. Torch-free."""

from pathlib import Path
from typing import NamedTuple

LOCAL_KINDS = frozenset(
    {"btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "reiserfs",
     "squashfs", "tmpfs", "vfat", "xfs", "zfs"}
)  # fmt: skip
"""File systems of one machine. Any other kind is believed to be shared."""
MOUNTS = Path("/proc/self/mountinfo")


class Mount(NamedTuple):
    """What a folder lies on."""

    kind: str
    point: str

    @property
    def local(self) -> bool:
        """Whether this machine alone sees it."""
        return self.kind in LOCAL_KINDS

    @property
    def steady(self) -> bool:
        """Whether a file has one inode number, whoever looks; file systems of programs give any."""
        return not self.kind.startswith("fuse")


def mount_of(folder: Path, mounts: Path = MOUNTS) -> Mount | None:
    """Return what a folder lies on; None where the system does not say.

    Args:
        folder: need not exist.
        mounts: the file in which Linux lists them.
    """
    try:
        table = mounts.read_text()
    except OSError:
        return None
    where, mount = folder.resolve(), None
    for line in table.splitlines():
        before, dash, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if not dash or len(fields) < 5 or not kind:
            continue
        point = fields[4].encode().decode("unicode_escape")
        # Of two mounts at one place the later one covers the other.
        if where.is_relative_to(point) and (mount is None or len(point) >= len(mount.point)):
            mount = Mount(kind[0], point)
    return mount
