"""Checks that other hosts see a folder: by its file system, and by a file (token) in it."""

import re
import secrets
import socket
from pathlib import Path

from lra.conf.plain_files import read_bytes
from lra.errors import ConfigError
from lra.runners.storage.atomic import write_whole
from lra.runners.storage.mounts import MOUNTS, mount_of

TOKENS = "tokens"


class TokenFault(RuntimeError):
    """A worker does not see the folder from which it was submitted."""


def check_shared(folder: Path, what: str, hosts: str, way_out: str) -> None:
    """Refuse a folder that other hosts cannot see.

    Args:
        folder: the folder that workers need.
        what: its name in messages, such as "the results folder".
        hosts: the hosts on which workers will run.
        way_out: what the user can do, for the message.

    Raises:
        ConfigError: it lies on a disk, or in the memory, of this machine.
    """
    mount = mount_of(folder, MOUNTS)
    if mount is not None and mount.local:
        raise ConfigError(
            f"{what} {folder.resolve()} is on {mount.kind}, mounted at {mount.point}: a file "
            f"system that only {socket.gethostname()} can read, but workers would run on {hosts}; "
            f"{way_out}"
        )


def check_pattern(folder: Path) -> None:
    """Refuse a folder whose name SLURM reads as a pattern, and so writes outputs elsewhere.

    Raises:
        ConfigError: it holds a percent sign, a backslash or a control character.
    """
    if not re.fullmatch(r"[^%\\\x00-\x1f]*", str(folder.resolve())):
        raise ConfigError(
            f"cluster=slurm: the results folder {str(folder.resolve())!r} holds %, a backslash or "
            "a control character, which SLURM replaces in the names of outputs; give results=DIR "
            "without them"
        )


def leave_token(folder: Path) -> Path:
    """Write a new token into the folder of a plan; return its path."""
    word = secrets.token_hex(8)
    path = folder / TOKENS / word
    path.parent.mkdir(exist_ok=True)
    write_whole(path, word.encode())
    return path.resolve()


def check_token(token: Path) -> str:
    """Return a sentence that says that this host sees the token in the plan's folder.

    Raises:
        TokenFault: this host does not see it.
    """
    try:
        content = read_bytes(token, 100).decode(errors="replace")
    except OSError as error:
        raise TokenFault(
            f"{socket.gethostname()} cannot read {token}: {error.strerror}. Results must lie in a "
            "folder that every node has under the same path: give results=DIR in such a folder"
        ) from error
    if content != token.name:
        raise TokenFault(
            f"{token}: got {content[:40]!r}; wanted {token.name!r}: this host has another folder"
        )
    return f"{socket.gethostname()} reads the plan in {token.parent.parent}"
