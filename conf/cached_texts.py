"""Texts that can be made again, kept in the cache of this machine."""

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from lra.conf.plain_files import read_marked

ANOTHER = "set the environment variable LRA_DATA to a folder that you may write"
"""What to do where the cache folder cannot be used."""


def data_root() -> Path:
    """Return the cache folder: `$LRA_DATA`, or ~/.cache/lra. It need not exist yet.

    Raises:
        ValueError: The user has no home folder, and LRA_DATA is not set.
    """
    try:
        return Path(os.environ.get("LRA_DATA") or "~/.cache/lra").expanduser()
    except RuntimeError as error:  # a number without a name, as in many containers
        raise ValueError(f"this user has no home folder (HOME is not set): {ANOTHER}") from error


def holds_cache(path: object) -> bool:
    """Tell whether a path is the cache folder or its locks, or a folder that they lie in."""
    with suppress(ValueError):
        return isinstance(path, str) and (data_root().absolute() / "locks").is_relative_to(path)
    return False


def read_kept(file: Path) -> str | None:
    """Return what `keep` wrote; None where that is not there, not whole, or of another user.

    A cache may be shared, and what is kept may be code.
    """
    with suppress(OSError, ValueError):
        content, status = read_marked(file)
        digest, _, text = content.partition(b"\n")
        if digest == _digest(text) and status.st_uid == os.geteuid():
            return text.decode()
    return None


def keep(file: Path, text: str) -> None:
    """Write a text to a file of the cache, whole or not at all; where it cannot be, not at all."""
    content = text.encode()
    temporary = file.with_name(f".{file.name}.{uuid4().hex[:8]}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(_digest(content) + b"\n" + content)
        temporary.replace(file)
    except OSError:
        with suppress(OSError):
            temporary.unlink()


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
