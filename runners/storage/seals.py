"""JSON objects with a digest of their content, by which a changed file is recognised."""

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
    """Raised for a file that was changed or is of another kind."""


def digest_of(raw: bytes | bytearray) -> str:
    """Return the digest of a file's content."""
    return hashlib.sha256(raw).hexdigest()[:16]


def seal(content: Mapping[str, Any], indent: int | None = None) -> bytes:
    """Return a mapping (not empty) as JSON, with the digest of its bytes as the last key.

    The digest is of the bytes and not of the values, so a reader parses them only once.
    """
    separators = (",", ":") if indent is None else None
    raw = json.dumps(content, indent=indent, ensure_ascii=False, separators=separators).encode()
    # In place of the closing brace.
    return raw[:-1] + f',"{DIGEST}":"{digest_of(raw)}"}}'.encode()


def unseal(raw: bytes, types: Types) -> dict[str, Any]:
    """Return the mapping in a sealed file.

    Args:
        raw: content of the file.
        types: types of the values that the reader uses, by key.

    Raises:
        NotSealed: the file was changed, or is of another kind.
    """
    match = _SEALED.fullmatch(raw)  # the content up to its closing brace, and the digest
    if match is None or digest_of(content := match[1] + b"}") != match[2].decode():
        raise NotSealed("the file was changed after lra wrote it")
    try:
        return typed_object(parse_json(content), types)
    except NoJson as error:  # a valid file of another kind
        raise NotSealed(str(error)) from error


def read_sealed(path: Path, types: Types) -> dict[str, Any]:
    """Return the mapping in the sealed file at `path`. Raises `NotSealed` or OSError."""
    return unseal(read_bytes(path), types)
