"""What counting found, kept in the cache of this machine for the next command that asks.

A count is kept under what decides it, and the hash of every source that it depends on: all that
`lra.sweep.costs` and the classes of the model reach by imports, those of a plug-in among them. A
source, or a version of PyTorch, that changed is another one.
"""

import json
from collections.abc import Iterator
from typing import Any

from lra.composition.class_path import paths_in
from lra.composition.compose import bundled_family
from lra.composition.run import Run
from lra.conf.cached_texts import data_root, keep, read_kept
from lra.runners.runner import OWN
from lra.runners.storage.fingerprint import Seen, digests, summary
from lra.sweep.identity import version

MOST = 8192
"""Counts that are kept."""
COUNTER = "lra.sweep.costs"
"""The module that counts."""


class KeptCounts:
    """Counts in a file of the cache; a file that is damaged counts for nothing."""

    def __init__(self) -> None:
        self.file = data_root() / "hashes" / "counts.json"
        self.numbers: dict[str, list[float]] = json.loads(read_kept(self.file) or "{}")
        self.added = False
        self._sources: dict[tuple[str, ...], str | None] = {}
        self._seen: Seen = {}

    def place(self, run: Run, name: str, key: str) -> str | None:
        """Return where the count of a pass is kept; None: nowhere, as its sources are not known.

        Args:
            run: Whose pass it is.
            name: Of the reference, or `OWN`.
            key: What decides the count besides sources.
        """
        sources = self._hash(tuple(sorted({*_modules(run, name)})))
        return None if sources is None else f"{sources} {key}"

    def get(self, place: str | None) -> list[float] | None:
        """Return what is kept there."""
        return None if place is None else self.numbers.get(place)

    def add(self, place: str | None, numbers: list[float]) -> None:
        """Take a count, to be written by `write`."""
        if place is not None:
            self.numbers[place], self.added = numbers, True

    def write(self) -> None:
        """Write the newest counts, where there are new ones, if they can be written."""
        if self.added:
            self.added = False
            there: dict[str, list[float]] = json.loads(read_kept(self.file) or "{}")
            newest = [*{**there, **self.numbers}.items()][-MOST:]
            keep(self.file, json.dumps(dict(newest)))

    def _hash(self, modules: tuple[str, ...]) -> str | None:
        if modules not in self._sources:
            try:
                sources = summary(digests((COUNTER, *modules), self._seen))
            except (ModuleNotFoundError, OSError, SyntaxError, ValueError):
                self._sources[modules] = None  # a class without a source that can be read
            else:
                self._sources[modules] = f"{version('torch')} {sources}"
        return self._sources[modules]


def _modules(run: Run, name: str) -> Iterator[str]:
    """Yield the modules of the classes of a model, or of a reference."""
    options: Any = run.mixer_options if name == OWN else bundled_family(name, "runner.references")
    yield from (path.rpartition(".")[0] for path in paths_in(options, "class_path"))
