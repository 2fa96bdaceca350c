"""What a run of W&B holds on disk, read back, so that a run can go on in another file.

W&B cannot resume a run without its server: a second file of the same run replaces the first when
both are sent. So a run that goes on takes the lines of its first file with it.
"""

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conf.plain_files import NoJson, parse_json, read_bytes

_MAGIC, _HEAD, _BLOCK = b":W&B", 7, 32768
_WHOLE, _LAST = 1, 4


def history(folder: Path) -> list[tuple[int, dict[str, float]]]:
    """Return the lines of a run's history: step, and numbers by key.

    What a killed process left torn at the end is left out; a folder without a file holds nothing.
    """
    found: dict[int, dict[str, float]] = {}
    for file in sorted(folder.glob("*.wandb")):
        for line in _history(_content(file)):
            step = line.pop("_step", None)
            numbers = {
                key: value
                for key, value in line.items()
                if key[0] != "_"
                and isinstance(value, (int, float))
                and not isinstance(value, bool)
                and math.isfinite(value)
            }
            if isinstance(step, int) and numbers:
                found.setdefault(step, {}).update(numbers)
    return sorted(found.items())


def _content(file: Path) -> bytes:
    try:
        return read_bytes(file)
    except OSError:
        return b""


def _history(data: bytes) -> Iterator[dict[str, Any]]:
    from wandb.proto import wandb_internal_pb2

    kind: Any = wandb_internal_pb2
    for payload in _payloads(data):
        record = kind.Record()
        try:
            record.ParseFromString(payload)
        except Exception:  # noqa: BLE001 - protobuf's own, which has no types: the end of a torn file
            return
        if record.WhichOneof("record_type") == "history":
            items = {
                ".".join(item.nested_key) or item.key: _value(item.value_json)
                for item in record.history.item
            }
            yield {"_step": record.history.step.num} | items


def _value(text: str) -> Any:
    try:
        return parse_json(text.encode())
    except NoJson:  # NaN is a number to W&B
        return None


def _payloads(data: bytes) -> Iterator[bytes]:
    """Yield what was appended to a log of LevelDB's kind: blocks, each with records and padding."""
    if data[: len(_MAGIC)] != _MAGIC:
        return
    at, parts = _HEAD, b""
    while at + _HEAD <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _HEAD:  # too little room for a header: padding up to the next block
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + _HEAD])
        if at + _HEAD + size > len(data) or not _WHOLE <= kind <= _LAST:
            return
        parts += data[at + _HEAD : at + _HEAD + size]
        at += _HEAD + size
        if kind in (_WHOLE, _LAST):
            yield parts
            parts = b""
