"""Certificates: the baselines of a task on its data, computed once and stored with them.

A certificate is a file `certificate-SPLIT-HASH.json` in the folder of the prepared data: which
task, which data, what a model sees of them, each baseline with its accuracy and its outcome on
every example, and a hash of all that. One folder serves many lengths and encodings; the name holds
a hash of all that decides the baselines, so that each has a file of its own. One that does not fit
(another version, a changed byte) is computed again.
"""

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from lra.conf.plain_files import MOST_BYTES, read_json, typed_object
from lra.tasks.data.sources import write_whole
from lra.tasks.data.stored_task import identity_of
from lra.tasks.task import Baseline, TaskSpec

log = logging.getLogger(__name__)

VERSION = 4
"""Increased by every change of a baseline, or of the form of the file."""


@runtime_checkable
class Certifiable(Protocol):
    """A task with baselines and a folder for them."""

    @property
    def spec(self) -> TaskSpec:
        """The facts."""
        ...

    @property
    def folder(self) -> Path:
        """Folder of the prepared data."""
        ...

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the baselines."""
        ...


@runtime_checkable
class Views(Protocol):
    """A task whose options, besides its facts, decide what a model reads of the stored data."""

    @property
    def view(self) -> Mapping[str, object]:
        """These options, plain JSON."""
        ...


def path_of(task: Certifiable, split: str) -> Path:
    """Return the path of the certificate."""
    return task.folder / f"certificate-{split}-{identity_of(_facts(task, split))}.json"


def certified_baselines(task: Certifiable, split: str, *, again: bool = False) -> list[Baseline]:
    """Return the baselines of prepared data: from the certificate, or computed and stored."""
    path = path_of(task, split)
    if not again and (stored := _stored_baselines(path, task, split)) is not None:
        return stored
    baselines = task.baselines(split)
    _write(path, _content(task, split, baselines))
    return baselines


def _facts(task: Certifiable, split: str) -> dict[str, Any]:
    """Return everything that decides the baselines but the code, for which the version stands."""
    spec = task.spec
    return {
        "certificate": VERSION,
        "task": spec.name,
        "task_version": spec.version,
        "source": spec.source,
        "data_hash": spec.data_hash,
        "kind": spec.kind.value,
        "max_length": spec.max_length,
        "vocabulary": spec.vocabulary,
        "classes": spec.classes,
        "padded": spec.padded,
        "scalars": spec.scalars,
        "regime": spec.regime,
        "tokenizer": spec.tokenizer,
        "memory": spec.memory,
        "view": dict(task.view) if isinstance(task, Views) else {},
        "split": split,
    }


def _content(task: Certifiable, split: str, baselines: list[Baseline]) -> dict[str, Any]:
    content = _facts(task, split) | {
        "baselines": [
            {
                "name": baseline.name,
                "accuracy": baseline.accuracy,
                "measures": dict(baseline.measures),
                "sentence": baseline.sentence,
                **_packed(baseline.outcomes),
            }
            for baseline in baselines
        ]
    }
    return content | {"sha256": _digest(content)}


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _stored_baselines(path: Path, task: Certifiable, split: str) -> list[Baseline] | None:
    try:
        content = typed_object(read_json(path, MOST_BYTES), {"sha256": str, "baselines": list})
    except (OSError, ValueError):
        return None
    digest = content.pop("sha256")
    if digest != _digest(content):
        log.warning("%s was changed by hand or damaged; it is computed again", path)
        return None
    if {key: content.get(key) for key in _facts(task, split)} != _facts(task, split):
        return None
    return [
        Baseline(
            name=each["name"],
            accuracy=each["accuracy"],
            outcomes=_unpacked(each),
            sentence=each["sentence"],
            measures=each["measures"],
        )
        for each in content["baselines"]
    ]


def _packed(outcomes: torch.Tensor | None) -> dict[str, Any]:
    if outcomes is None:
        return {}
    packed = np.packbits(outcomes.numpy()).tobytes().hex()
    return {"examples": len(outcomes), "outcomes": packed}


def _unpacked(each: dict[str, Any]) -> torch.Tensor | None:
    if "outcomes" not in each:
        return None
    bits = np.frombuffer(bytes.fromhex(each["outcomes"]), np.uint8)
    return torch.from_numpy(np.unpackbits(bits, count=each["examples"]).astype(bool))


def _write(path: Path, content: dict[str, Any]) -> None:
    """Put the file in place whole; a folder that takes no files costs a warning."""
    try:
        write_whole(path, json.dumps(content, indent=1, sort_keys=True))
    except OSError as error:
        log.warning("the certificate %s cannot be stored: %s", path, error)
