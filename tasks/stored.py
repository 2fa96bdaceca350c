"""What all tasks with prepared data share: a folder, made once under a lock, mapped into memory."""

import logging
from abc import ABC, abstractmethod
from pathlib import Path

from tasks.ragged import Ragged, Store, open_store, verify_store
from tasks.sources import lock
from tasks.task import SPLITS, TaskSpec

log = logging.getLogger(__name__)


class StoredTask(ABC):
    """A task adds what it is, and how its data are made."""

    _store: Store | None = None

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

    def prepare(self) -> None:
        """Make the data ready on this machine: idempotent, safe with several processes."""
        if not self._complete():
            with lock(self.folder.name):
                if not self._complete():
                    log.info("preparing %s in %s", self.spec.name, self.folder)
                    self.make()
        self.store()

    def _complete(self) -> bool:
        return (self.folder / "manifest.json").is_file()

    def verify(self) -> None:
        """Compare the prepared files with their hashes; `BadData` where one differs."""
        verify_store(self.folder)

    def store(self) -> Store:
        """Return the opened data; `NotPrepared` where `prepare` has not run."""
        if self._store is None:
            self._store = open_store(self.folder)
        return self._store

    def split(self, name: str) -> Ragged:
        """Return what is stored of a split; ValueError for an unknown one."""
        if name not in SPLITS:
            raise ValueError(f"unknown split {name!r}: wanted one of {', '.join(SPLITS)}")
        return self.store().splits[name]
