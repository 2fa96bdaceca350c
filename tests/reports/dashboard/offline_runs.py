"""Offline W&B runs read back from their log, without W&B's own reader."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def records(folder: Path) -> Iterator[Any]:
    """Read a `.wandb` file: 7 bytes of head, then LevelDB's log of protobuf records."""
    from wandb.proto import wandb_internal_pb2

    (path,) = folder.glob("*.wandb")
    data = path.read_bytes()
    assert data[:4] == b":W&B"
    at, parts = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:  # too little room for a header: padding up to the next block
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        assert kind in {1, 2, 3, 4}
        parts += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in {1, 4}:  # whole, or last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


class Run:
    """What one offline run holds."""

    def __init__(self, folder: Path) -> None:
        self.history: list[dict[str, Any]] = []
        self.summary: dict[str, Any] = {}
        self.axes: dict[str, str] = {}
        self.config: dict[str, Any] = {}
        self.artifacts: dict[str, list[str]] = {}
        self.folder = folder
        for record in records(folder):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                self.run = record.run
                for item in record.run.config.update:
                    self.config[item.key] = json.loads(item.value_json)
            elif kind == "history":
                self.history.append(
                    {".".join(i.nested_key) or i.key: json.loads(i.value_json)
                     for i in record.history.item}
                )  # fmt: skip
            elif kind == "summary":
                for item in record.summary.update:
                    key = ".".join(item.nested_key) or item.key
                    self.summary[key] = json.loads(item.value_json)
            elif kind == "metric" and record.metric.step_metric:
                self.axes[record.metric.glob_name or record.metric.name] = record.metric.step_metric
            elif kind == "artifact":
                names = [c.path for c in record.artifact.manifest.contents]
                self.artifacts[record.artifact.name] = names

    def values(self, key: str) -> list[Any]:
        return [line[key] for line in self.history if key in line]
