"""JSON objects that carry a digest of themselves: a file that was changed is recognised."""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lra.conf.plain_files import NoJson, Types, parse_json, read_bytes, typed_object

DIGEST = "digest"
_SEALED = re.compile(rb'(.*),"digest":"([0-9a-f]{16})"\}', re.DOTALL)


class NotSealed(ValueError):
    """What was read is not what was written."""


def digest_of(raw: bytes | bytearray) -> str:
    """Return the digest of a file's content."""
    return hashlib.sha256(raw).hexdigest()[:16]


def seal(content: Mapping[str, Any], indent: int | None = None) -> bytes:
    """Return an object, which is not empty, as JSON, with the digest of all before as its last key.

    The digest is of the bytes, so that a reader takes them apart once.
    """
    separators = (",", ":") if indent is None else None
    raw = json.dumps(content, indent=indent, ensure_ascii=False, separators=separators).encode()
    return raw[:-1] + f',"{DIGEST}":"{digest_of(raw)}"}}'.encode()


def unseal(raw: bytes, types: Types) -> dict[str, Any]:
    """Return the object of a file.

    Args:
        raw: its content.
        types: of its values that the reader uses, by key.

    Raises:
        NotSealed: anything in it was changed, or it is of another kind.
    """
    whole = _SEALED.fullmatch(raw)
    if whole is None or digest_of(content := whole[1] + b"}") != whole[2].decode():
        raise NotSealed("changed since it was written")
    try:
        return typed_object(parse_json(content), types)
    except NoJson as error:  # whole, and another file in its place
        raise NotSealed(str(error)) from error


def read_sealed(path: Path, types: Types) -> dict[str, Any]:
    """Return the object of a file, as `unseal` does. Raises `NotSealed` or OSError."""
    return unseal(read_bytes(path), types)
