"""Make safe file names from texts of rows, so that no text of a row is used as a path."""

import hashlib
import re

_LONGEST = 48
"""The most characters that a file name takes from one part."""
_LONGEST_NAME = 200
"""The most bytes of a name without its ending; file systems allow 255 with the ending."""


def stem(*parts: str) -> str:
    """Return the beginning of a file name: the parts, joined by hyphens.

    A part of letters, digits and underscores is unchanged. In any other part, unsafe characters
    become hyphens, and a plus sign and a hash of the part follow, so that different parts give
    different names.
    """
    return "-".join(map(_safe_part, parts))


def fit_stem(file: str) -> str:
    """Return a file name without its ending, cut so that file systems accept it with an ending.

    A hash of the whole name replaces the end of a long one, so that different names stay different.
    """
    if len(file.encode()) <= _LONGEST_NAME:
        return file
    digest = hashlib.sha256(file.encode()).hexdigest()[:12]
    # The plus sign and the hash take 13 bytes.
    return f"{file.encode()[: _LONGEST_NAME - 13].decode(errors='ignore')}+{digest}"


def _safe_part(text: str) -> str:
    """Return a text as a part of a file name; see `stem`."""
    if re.fullmatch(rf"[A-Za-z0-9_]{{1,{_LONGEST}}}", text):
        return text
    safe = re.sub(r"[^A-Za-z0-9_]+", "-", text)[:_LONGEST].strip("-")
    return f"{safe}+{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:12]}"
