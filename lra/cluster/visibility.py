"""Whether other hosts see a folder: by the kind of its file system, and by a token in it."""

import secrets
import socket
from pathlib import Path
from typing import NamedTuple

from conf.plain_files import read_bytes
from lra.configuration import ConfigError
from runners.storage.atomic import write_whole

LOCAL_KINDS = frozenset(
    {"btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "reiserfs",
     "squashfs", "tmpfs", "vfat", "xfs", "zfs"}
)  # fmt: skip
"""File systems of one machine. Any other kind is believed to be shared, and the token tells."""
TOKENS = "tokens"
MOUNTS = Path("/proc/self/mountinfo")


class TokenFault(RuntimeError):
    """A worker does not see the folder that was submitted."""


class Mount(NamedTuple):
    """What a folder lies on."""

    kind: str
    point: str


def mount_of(folder: Path, table: str | None = None) -> Mount | None:
    """Return what a folder lies on; None where the system does not say.

    Args:
        folder: need not exist.
        table: the mounts, as Linux lists them; those of this machine.
    """
    if table is None:
        try:
            table = MOUNTS.read_text()
        except OSError:
            return None
    where, found = folder.resolve(), None
    for line in table.splitlines():
        before, dash, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if not dash or len(fields) < 5 or not kind:
            continue
        point = fields[4].encode().decode("unicode_escape")
        # Of two mounts at one place the later one covers the other.
        if where.is_relative_to(point) and (found is None or len(point) >= len(found.point)):
            found = Mount(kind[0], point)
    return found


def check_shared(folder: Path, what: str, hosts: str, way_out: str) -> None:
    """Refuse a folder that other hosts cannot see.

    Args:
        folder: what they need.
        what: what it is to the person: the results folder.
        hosts: where workers are to run.
        way_out: what to do.

    Raises:
        ConfigError: it lies on a disk, or in the memory, of this machine.
    """
    mount = mount_of(folder)
    if mount is not None and mount.kind in LOCAL_KINDS:
        raise ConfigError(
            f"{what} {folder.resolve()} is on {mount.kind}, mounted at {mount.point}: a file "
            f"system of {socket.gethostname()} alone, and workers would run on {hosts}; {way_out}"
        )


def leave_token(folder: Path) -> Path:
    """Write a new token into a plan's folder; return the file."""
    word = secrets.token_hex(8)
    path = folder / TOKENS / word
    path.parent.mkdir(exist_ok=True)
    write_whole(path, word.encode())
    return path.resolve()


def check_token(token: Path) -> str:
    """Return a sentence that says that this host sees a token.

    Raises:
        TokenFault: it does not.
    """
    try:
        seen = read_bytes(token, 100).decode(errors="replace")
    except OSError as error:
        raise TokenFault(
            f"{socket.gethostname()} does not see {token}: {error.strerror}. Results must lie in a "
            "folder that every node has under the same path: give results=DIR on such a one"
        ) from error
    if seen != token.name:
        raise TokenFault(f"{token}: got {seen[:40]!r}; wanted {token.name!r}: not the same folder")
    return f"sees the plan in {token.parent.parent}"
