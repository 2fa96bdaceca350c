"""Counts of passes, stored in this machine's cache for the commands that follow.

The key of a count holds everything that decides it, and a hash of the version of PyTorch and of
every source file that `lra.sweep.costs` and the classes of the model import, plug-ins included.
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
"""Counts that the file may hold; the oldest ones are dropped."""
COUNTER = "lra.sweep.costs"
"""The module that counts."""


class KeptCounts:
    """Reads and writes the counts in a file of the cache. A damaged file counts as empty."""

    def __init__(self) -> None:
        """Read the file."""
        self.file = data_root() / "hashes" / "counts.json"
        self.numbers: dict[str, list[float]] = json.loads(read_kept(self.file) or "{}")
        self.added = False
        self._sources: dict[tuple[str, ...], str | None] = {}
        self._seen: Seen = {}

    def place(self, run: Run, name: str, key: str) -> str | None:
        """Return the key of a pass in the file; None: it is not stored, as a source is unreadable.

        Args:
            run: The run that has the pass.
            name: The name of the reference, or `OWN` for the model of the run.
            key: Everything that decides the count, except the sources.
        """
        sources = self._hash(tuple(sorted({*_list_modules(run, name)})))
        return None if sources is None else f"{sources} {key}"

    def get(self, place: str | None) -> list[float] | None:
        """Return the numbers of the count that is stored under a key; None: there are none."""
        return None if place is None else self.numbers.get(place)

    def add(self, place: str | None, numbers: list[float]) -> None:
        """Add a count in memory; `write` stores it. A `place` of None drops it."""
        if place is not None:
            self.numbers[place], self.added = numbers, True

    def write(self) -> None:
        """Add the new counts, if any, to the file, as far as it can be written."""
        if self.added:
            self.added = False
            # Another command may have written since this one has read the file.
            in_file: dict[str, list[float]] = json.loads(read_kept(self.file) or "{}")
            newest = [*{**in_file, **self.numbers}.items()][-MOST:]
            keep(self.file, json.dumps(dict(newest)))

    def _hash(self, modules: tuple[str, ...]) -> str | None:
        """Return a hash of PyTorch's version and all sources of modules; None: unreadable."""
        if modules not in self._sources:
            try:
                sources = summary(digests((COUNTER, *modules), self._seen))
            except (ModuleNotFoundError, OSError, SyntaxError, ValueError):
                self._sources[modules] = None  # a class without a source that can be read
            else:
                self._sources[modules] = f"{version('torch')} {sources}"
        return self._sources[modules]


def _list_modules(run: Run, name: str) -> Iterator[str]:
    """Yield the modules of the classes of a run's model (`OWN`), or of the reference `name`."""
    options: Any = run.mixer_options if name == OWN else bundled_family(name, "runner.references")
    yield from (path.rpartition(".")[0] for path in paths_in(options, "class_path"))
