"""Texts that can be computed again, stored in the cache folder of this machine."""

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from lra.conf.plain_files import read_marked

ANOTHER = "set the environment variable LRA_DATA to a folder that you may write"
"""Advice for a user who cannot write to the cache folder; part of messages."""


def data_root() -> Path:
    """Return the cache folder: `$LRA_DATA`, or else ~/.cache/lra. It may be missing.

    Raises:
        ValueError: The user has no home folder, and LRA_DATA is not set.
    """
    try:
        return Path(os.environ.get("LRA_DATA") or "~/.cache/lra").expanduser()
    except RuntimeError as error:  # in many containers the user has a number but no name
        raise ValueError(f"this user has no home folder (HOME is not set): {ANOTHER}") from error


def holds_cache(path: object) -> bool:
    """Return whether `path` is the cache folder, its folder of locks, or a parent of them."""
    with suppress(ValueError):
        return isinstance(path, str) and (data_root().absolute() / "locks").is_relative_to(path)
    return False


def read_kept(file: Path) -> str | None:
    """Return the text that `keep` wrote to `file`; None if it is missing, damaged or not ours.

    Files of other users of a shared cache are ignored, because a text may be code.
    """
    with suppress(OSError, ValueError):
        content, status = read_marked(file)
        digest, _, text = content.partition(b"\n")
        if digest == _digest(text) and status.st_uid == os.geteuid():
            return text.decode()
    return None


def keep(file: Path, text: str) -> None:
    """Write `text` to `file` of the cache in one step; ignore a folder that cannot be written."""
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
