"""The base of tasks with prepared data: a folder, made once under a lock, mapped into memory."""

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

BYTES = "a token is a byte + 1, or 0 for padding"
GRAY_LEVELS = "a token is a gray level from 0 to 255"
GENERATED = "generated here"
"""Descriptions of vocabularies, and the licence of generated data, in manifests."""
WITHOUT_FILES = ("generated", "sample")
"""Beginnings of the names of sources that need no files."""
MISSING = "missing"
"""Replaces the hash of missing data."""

log = logging.getLogger(__name__)


def identity_of(facts: Mapping[str, object]) -> str:
    """Return a short hash of `facts`, which decide the content of prepared data."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


class StoredTask(ByName, ABC):
    """A base class; a subclass defines `spec` and `folder`, and makes the data in `make`."""

    incidental: ClassVar[frozenset[str]] = frozenset()
    """Options that change no number; see `lra.tasks.task.Task`."""

    holds_text: bool = False
    """Whether stored tokens are bytes of a text; `write` then searches splits for common text."""

    _store: PreparedStore | None = None
    lacking: NotPrepared | BadData | None = None
    """The error about missing data that `spec` found, if any; `prepare` raises it."""

    def content_hash(self, identity: Callable[[], str]) -> str:
        """Return `identity()`, or `MISSING` if it finds no data; then `lacking` has the reason.

        So a sweep can report the runs without data, and do the others.
        """
        try:
            return identity()
        except (NotPrepared, BadData) as error:
            self.lacking = error
            return MISSING

    @property
    @abstractmethod
    def spec(self) -> TaskSpec:
        """The facts about this task; the same before and after `prepare`."""

    @property
    @abstractmethod
    def folder(self) -> Path:
        """Folder of the prepared data; its name has a hash of what decides their content."""

    @abstractmethod
    def make(self) -> None:
        """Get the data and write the store at `folder`; `prepare` calls this if it is missing."""

    @abstractmethod
    def examples(self, split: str) -> int:
        """Return the number of examples of a prepared split."""

    @abstractmethod
    def lengths(self, split: str) -> Int[np.ndarray, " n"]:
        """Return the number of tokens in every sequence or window of a prepared split."""

    def write(
        self,
        splits: Mapping[str, RaggedRows | Iterable[RaggedRows]] | Iterable[tuple[str, RaggedRows]],
        **about: Any,
    ) -> None:
        """Write the store of these splits; `make` calls this. `about` is added to the manifest."""
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
        """Return facts for the manifest about text that is in two splits."""
        if not (shares := self.overlaps(splits)):
            return {}
        remarks = dict(about.get("remarks", {}))
        for split, remark in overlap.overlap_remarks(shares).items():
            remarks[split] = "; ".join(filter(None, (remarks.get(split), remark)))
        return {"overlap": overlap.overlap_sentence(shares), "remarks": remarks}

    def overlaps(self, splits: Mapping[str, RaggedRows]) -> dict[tuple[str, str], float]:
        """Return, by (split, earlier split), the share (0 to 1) of text that both have.

        {} if the data are no text. `splits` are the stored rows of each split.
        """
        if not (run := self.run_tokens(splits)):
            return {}
        return overlap.run_shares(
            {split: self.text_sequences(splits[split]) for split in SPLITS}, run
        )

    def overlap_sentence(self) -> str:
        """Return a sentence with the share of each split's text in other splits; "" for none."""
        return overlap.overlap_sentence(self.overlaps(self.store().splits))

    def run_tokens(self, splits: Mapping[str, RaggedRows]) -> int:
        """Return the number of tokens of about 50 bytes of text; 0 if the data are no text."""
        del splits
        return overlap.RUN_BYTES if self.holds_text else 0

    def text_sequences(self, data: RaggedRows) -> Sequences:
        """Return the stored sequences of a split; compared pieces of text are inside of one."""
        return Sequences(data.tokens, data.offsets)

    def prepare(self) -> None:
        """Prepare the data on this machine, once; several processes may call this together."""
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
        """Return whether `prepare` must still fetch or convert files; generated data need none."""
        return not self.spec.source.startswith(WITHOUT_FILES) and not self._complete()

    def verify(self) -> None:
        """Compare the prepared files with their hashes; raise `BadData` if one differs."""
        verify_store(self.folder)

    def store(self) -> PreparedStore:
        """Return the opened data; raise `NotPrepared` before `prepare`."""
        if self._store is None:
            self._store = open_store(self.folder)
        return self._store

    @property
    def remarks(self) -> Mapping[str, str]:
        """Remarks on the data that `make` stored; see `lra.tasks.task.RemarkedData`."""
        stored: Mapping[str, str] = self.store().about.get("remarks", {})
        return stored

    def split(self, name: str) -> RaggedRows:
        """Return the stored rows of a split; raise ValueError for an unknown name."""
        if name not in SPLITS:
            raise ValueError(f"split: got {short_repr(name)}; wanted one of {', '.join(SPLITS)}")
        return self.store().splits[name]
