"""Certificates: the baselines of a task, computed once and stored with its prepared data.

A certificate is a file `certificate-SPLIT-HASH.json` in the folder of the prepared data. It holds
everything that decides the baselines (task, data, options), each baseline with its accuracy and its
outcome on every example, and a hash of the whole content. HASH differs for each choice of length or
encoding. A file of another version, or with a changed byte, is computed again.
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

VERSION = 5
"""Increased by every change of a baseline, or of the form of the file."""


@runtime_checkable
class Certifiable(Protocol):
    """A task that has baselines and a folder to store them in."""

    @property
    def spec(self) -> TaskSpec:
        """The facts about this task."""
        ...

    @property
    def folder(self) -> Path:
        """Folder of the prepared data."""
        ...

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the baselines on `split`."""
        ...


@runtime_checkable
class Views(Protocol):
    """A task with options that decide what a model reads of the data and are not in its spec."""

    @property
    def view(self) -> Mapping[str, object]:
        """These options and their values, which JSON can represent."""
        ...


def path_of(task: Certifiable, split: str) -> Path:
    """Return the path of the certificate of `task` for `split`; the file may be missing."""
    return task.folder / f"certificate-{split}-{identity_of(_facts(task, split))}.json"


def certified_baselines(task: Certifiable, split: str, *, again: bool = False) -> list[Baseline]:
    """Return the baselines on `split` from the certificate; compute missing ones, or `again`."""
    path = path_of(task, split)
    if not again and (stored := _stored_baselines(path, task, split)) is not None:
        return stored
    baselines = task.baselines(split)
    _write_certificate(path, _certificate_json(task, split, baselines))
    return baselines


def _facts(task: Certifiable, split: str) -> dict[str, Any]:
    """Return everything that decides the baselines; the two versions stand for the code."""
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
        **({"channels": spec.channels} if spec.channels > 1 else {}),
        "regime": spec.regime,
        "tokenizer": spec.tokenizer,
        "memory": spec.memory,
        "view": dict(task.view) if isinstance(task, Views) else {},
        "split": split,
    }


def _certificate_json(task: Certifiable, split: str, baselines: list[Baseline]) -> dict[str, Any]:
    """Return the JSON object of a certificate, with a hash of the rest as `sha256`."""
    content = _facts(task, split) | {
        "baselines": [
            {
                "name": baseline.name,
                "accuracy": baseline.accuracy,
                "measures": dict(baseline.measures),
                "sentence": baseline.sentence,
                "groups": [[*part, *score] for part, score in baseline.groups.items()],
                **_pack_outcomes(baseline.outcomes),
            }
            for baseline in baselines
        ]
    }
    return content | {"sha256": _digest(content)}


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _stored_baselines(path: Path, task: Certifiable, split: str) -> list[Baseline] | None:
    """Return the baselines in the certificate at `path`; None if it is missing or does not fit."""
    try:
        content = typed_object(read_json(path, MOST_BYTES), {"sha256": str, "baselines": list})
    except (OSError, ValueError):
        return None
    digest = content.pop("sha256")
    if digest != _digest(content):
        log.warning("%s was changed by hand or damaged; lra computes this file again", path)
        return None
    if {key: content.get(key) for key in _facts(task, split)} != _facts(task, split):
        return None
    return [
        Baseline(
            name=stored["name"],
            accuracy=stored["accuracy"],
            outcomes=_unpack_outcomes(stored),
            sentence=stored["sentence"],
            measures=stored["measures"],
            groups={(name, part): (value, items) for name, part, value, items in stored["groups"]},
        )
        for stored in content["baselines"]
    ]


def _pack_outcomes(outcomes: torch.Tensor | None) -> dict[str, Any]:
    """Return the number of outcomes, and their bits as hexadecimal digits; {} for None."""
    if outcomes is None:
        return {}
    packed = np.packbits(outcomes.numpy()).tobytes().hex()
    return {"examples": len(outcomes), "outcomes": packed}


def _unpack_outcomes(stored: dict[str, Any]) -> torch.Tensor | None:
    """Return the outcomes [n] (bool) of a stored baseline; None if it has none."""
    if "outcomes" not in stored:
        return None
    bits = np.frombuffer(bytes.fromhex(stored["outcomes"]), np.uint8)
    return torch.from_numpy(np.unpackbits(bits, count=stored["examples"]).astype(bool))


def _write_certificate(path: Path, content: dict[str, Any]) -> None:
    """Write the certificate in one step; only warn if the folder cannot be written."""
    try:
        write_whole(path, json.dumps(content, indent=1, sort_keys=True))
    except OSError as error:
        log.warning("lra cannot store the baselines in %s: %s", path, error)
