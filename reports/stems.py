"""Names of files from data: nothing that rows hold is ever a path."""

import hashlib
import re

_LONGEST = 48
"""Characters that are kept of one part."""
_LONGEST_NAME = 200
"""Bytes of a name without its ending: with that, file systems take 255."""


def stem(*parts: str) -> str:
    """Return the beginning of a file name: the parts, joined by hyphens.

    A part of letters, digits and underscores stays as it is. Any other one keeps what is safe of it
    and gains a plus sign and a hash of the whole: different parts give different names.
    """
    return "-".join(map(_part, parts))


def fit_stem(file: str) -> str:
    """Return a file name without its ending, short enough for file systems, endings included.

    One that is too long loses its end to a hash of the whole: different names stay different.
    """
    if len(file.encode()) <= _LONGEST_NAME:
        return file
    whole = hashlib.sha256(file.encode()).hexdigest()[:12]
    return f"{file.encode()[: _LONGEST_NAME - 13].decode(errors='ignore')}+{whole}"


def _part(text: str) -> str:
    if re.fullmatch(rf"[A-Za-z0-9_]{{1,{_LONGEST}}}", text):
        return text
    safe = re.sub(r"[^A-Za-z0-9_]+", "-", text)[:_LONGEST].strip("-")
    return f"{safe}+{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:12]}"
