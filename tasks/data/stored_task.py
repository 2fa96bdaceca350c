"""What all tasks with prepared data share: a folder, made once under a lock, mapped into memory."""

import hashlib
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int

from lra.conf.choices import ByName
from lra.conf.short_values import short_repr
from lra.conf.system_errors import is_file
from lra.tasks.data import overlap
from lra.tasks.data.full_disk import full_disk_explained
from lra.tasks.data.leftovers import sweep
from lra.tasks.data.overlap import Sequences
from lra.tasks.data.sources import data_root, lock
from lra.tasks.data.storage import PreparedStore, RaggedRows, open_store, verify_store, write_store
from lra.tasks.errors import BadData, NotPrepared
from lra.tasks.task import SPLITS, TaskSpec

BYTES = "byte + 1, 0 pads"
GRAY_LEVELS = "gray levels 0 … 255"
GENERATED = "generated here"
WITHOUT_FILES = ("generated", "sample")
"""Beginnings of sources that are made wherever they are needed."""
"""What manifests say of vocabularies and licences."""
MISSING = "missing"
"""In place of a hash of data that are not there."""

log = logging.getLogger(__name__)


def identity_of(facts: Mapping[str, object]) -> str:
    """Return a short hash of what decides the content of prepared data."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


class StoredTask(ByName, ABC):
    """A task adds what it is, and how its data are made."""

    incidental: ClassVar[frozenset[str]] = frozenset()
    """As in `lra.tasks.task.Task`."""

    holds_text: bool = False
    """Whether a stored token is a byte of a text: splits are then searched for text they share."""

    _store: PreparedStore | None = None
    lacking: NotPrepared | BadData | None = None
    """Why the data cannot be had, once `spec` has looked for them; `prepare` raises it."""

    def content_hash(self, identity: Callable[[], str]) -> str:
        """Return the hash of what decides the data, or `MISSING` where files of them lack.

        So a sweep can name the cells of a task without data, and do the others.
        """
        try:
            return identity()
        except (NotPrepared, BadData) as error:
            self.lacking = error
            return MISSING

    @property
    @abstractmethod
    def spec(self) -> TaskSpec:
        """The facts; same before and after `prepare`."""

    @property
    @abstractmethod
    def folder(self) -> Path:
        """Where the prepared data lie; named by what decides their content."""

    @abstractmethod
    def make(self) -> None:
        """Write the store at `folder`; called under the lock, only when it is missing."""

    @abstractmethod
    def examples(self, split: str) -> int:
        """Return the number of examples of a prepared split."""

    @abstractmethod
    def lengths(self, split: str) -> Int[np.ndarray, " n"]:
        """Return the tokens of every sequence or window of a prepared split."""

    def write(
        self,
        splits: Mapping[str, RaggedRows | Iterable[RaggedRows]] | Iterable[tuple[str, RaggedRows]],
        **about: Any,
    ) -> None:
        """Write the store, from `make`; `about` is what its manifest says besides the task."""
        spec = self.spec
        facts = {
            "task": spec.name,
            "version": spec.version,
            "source": spec.source,
            "data_hash": spec.data_hash,
        }
        write_store(self.folder, splits, {**facts, **about}, partial(self._overlap_facts, about))

    def _overlap_facts(
        self, about: Mapping[str, Any], splits: Mapping[str, RaggedRows]
    ) -> dict[str, Any]:
        """Return what a manifest says of text that stands in two splits."""
        if not (found := self.overlaps(splits)):
            return {}
        remarks = dict(about.get("remarks", {}))
        for split, remark in overlap.overlap_remarks(found).items():
            remarks[split] = "; ".join(filter(None, (remarks.get(split), remark)))
        return {"overlap": overlap.overlap_sentence(found), "remarks": remarks}

    def overlaps(self, splits: Mapping[str, RaggedRows]) -> dict[tuple[str, str], float]:
        """Return which share of a split's text stands in each split before it, at any place.

        Args:
            splits: What is stored of each.

        Returns:
            By (split, earlier split), from 0 to 1; nothing where data are no text.
        """
        if not (run := self.run_tokens(splits)):
            return {}
        return overlap.run_shares(
            {split: self.text_sequences(splits[split]) for split in SPLITS}, run
        )

    def overlap_sentence(self) -> str:
        """Say which share of a split's text stands in another; nothing where there is none."""
        return overlap.overlap_sentence(self.overlaps(self.store().splits))

    def run_tokens(self, splits: Mapping[str, RaggedRows]) -> int:
        """Return the tokens of some 50 bytes of text; 0 where data are no text."""
        del splits
        return overlap.RUN_BYTES if self.holds_text else 0

    def text_sequences(self, data: RaggedRows) -> Sequences:
        """Return what is stored of a split as sequences whose ends no run of text passes."""
        return Sequences(data.tokens, data.offsets)

    def prepare(self) -> None:
        """Make the data ready on this machine: idempotent, safe with several processes."""
        if self.spec.data_hash == MISSING and self.lacking is not None:
            raise self.lacking
        if not self._complete():
            with full_disk_explained(data_root()), lock(self.folder.name):
                sweep(data_root())
                if not self._complete():
                    log.info("preparing %s in %s", self.spec.name, self.folder)
                    self.make()
        self.store()

    def _complete(self) -> bool:
        return is_file(self.folder / "manifest.json")

    def wants_files(self) -> bool:
        """Tell whether files are to be fetched or converted first: what is generated needs none."""
        return not self.spec.source.startswith(WITHOUT_FILES) and not self._complete()

    def verify(self) -> None:
        """Compare the prepared files with their hashes; `BadData` where one differs."""
        verify_store(self.folder)

    def store(self) -> PreparedStore:
        """Return the opened data; `NotPrepared` where `prepare` has not run."""
        if self._store is None:
            self._store = open_store(self.folder)
        return self._store

    @property
    def remarks(self) -> Mapping[str, str]:
        """What `make` found odd, as in `lra.tasks.task.RemarkedData`."""
        stored: Mapping[str, str] = self.store().about.get("remarks", {})
        return stored

    def split(self, name: str) -> RaggedRows:
        """Return what is stored of a split; ValueError for an unknown one."""
        if name not in SPLITS:
            raise ValueError(f"unknown split {short_repr(name)}: wanted one of {', '.join(SPLITS)}")
        return self.store().splits[name]
