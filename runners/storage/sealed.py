"""JSON objects that carry a digest of themselves: a file that is not as it was written is known."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

DIGEST = "digest"


class NotSealed(ValueError):
    """What was read is not what was written."""


def digest_of(raw: bytes) -> str:
    """Return the digest of a file's content."""
    return hashlib.sha256(raw).hexdigest()[:16]


def _seal_of(content: Mapping[str, Any]) -> str:
    return digest_of(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def sealed(content: Mapping[str, Any], indent: int | None = None) -> bytes:
    """Return an object as JSON, with the digest of all else in it as its last key."""
    plain = json.loads(json.dumps(content))  # as it will be read: lists for tuples, text for keys
    separators = (",", ":") if indent is None else None
    whole = {**plain, DIGEST: _seal_of(plain)}
    return json.dumps(whole, indent=indent, ensure_ascii=False, separators=separators).encode()


def unsealed(raw: bytes) -> dict[str, Any]:
    """Return the object of a file.

    Raises:
        NotSealed: it is no JSON object, or anything in it was changed.
    """
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise NotSealed("no JSON") from error
    if not isinstance(found, dict):
        raise NotSealed("no JSON object")
    if found.pop(DIGEST, None) != _seal_of(found):
        raise NotSealed("changed since it was written")
    return found
