"""The protein sequences that a task reads, and their division into splits."""

import re
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum, auto
from pathlib import Path

from lra.conf.choices import ByName
from lra.conf.short_values import short_repr
from lra.tasks.data.published_data import (
    check_partial,
    check_whole,
    given_path,
    named_path,
    source_name,
)
from lra.tasks.data.storage import RaggedRows
from lra.tasks.data.stored_task import GENERATED
from lra.tasks.errors import NotPrepared
from lra.tasks.proteins import pfam
from lra.tasks.proteins.fasta import ProteinRecord
from lra.tasks.proteins.sources import (
    LICENCE,
    content,
    fasta_files,
    from_datasets,
    from_files,
    sample,
)
from lra.tasks.proteins.splits import Splitter, split_blocks

SWISS_PROT = 540_000
"""Fewest sequences of a Swiss-Prot release since 2014 (release notes of UniProtKB/Swiss-Prot); the
number differs by release, and TrEMBL has hundreds of times as many."""


class ProteinSource(StrEnum):
    """Where the sequences come from."""

    files = auto()
    datasets = auto()
    sample = auto()


class Duplicates(StrEnum):
    """Treatment of a sequence that occurred before."""

    drop = auto()
    keep = auto()


class ProteinData(ByName):
    """Sequences from one source; the options are those of `lra.tasks.proteins.task.Proteins`.

    Raises:
        ValueError: The options contradict each other.
    """

    def __init__(
        self,
        *,
        source: ProteinSource,
        path: str | None,
        partial: bool,
        dataset: str,
        revision: str | None,
        column: str,
        families: str | None,
        held_out_families: list[str],
        validation_fraction: float,
        test_fraction: float,
        duplicates: Duplicates,
    ) -> None:
        self.source, self.duplicates, self.partial = source, duplicates, partial
        check_partial(partial, source is not ProteinSource.sample)
        self.path = given_path(path, source)
        self.dataset, self.revision, self.column = dataset, revision, column
        self.families = named_path(families) if families is not None else None
        self.held_out_families = sorted(set(held_out_families or pfam.PUBLISHED))
        self.shares = {"validation": validation_fraction, "test": test_fraction}
        for name, share in self.shares.items():
            if not 0 < share < 0.5:
                raise ValueError(f"task.{name}_fraction must lie in (0, 0.5): got {share}")
        self._check_source()
        if self.families is not None and self.source is not ProteinSource.files:
            raise ValueError(
                "task.families needs FASTA files, which have accessions: got "
                f"task.source={self.source}; set task.source=files"
            )
        if self.families is None and held_out_families:
            raise ValueError(
                "task.held_out_families needs task.families, a table of families: got "
                f"held_out_families={held_out_families}, families=null; set task.families"
            )
        for name in self.held_out_families:
            if not re.fullmatch(r"PF\d{5}", name):
                raise ValueError(
                    "task.held_out_families must list Pfam accessions, for example PF18369: got "
                    f"{short_repr(name)}"
                )

    def _check_source(self) -> None:
        """Raise ValueError unless `revision` is set exactly for a data set of the hub."""
        if self.source is ProteinSource.datasets and self.path is None:
            if not re.fullmatch(r"[0-9a-f]{40}", self.revision or ""):
                raise ValueError(
                    f"task.revision must be a commit of the data set {self.dataset}, 40 "
                    f"hexadecimal digits, because branches change: got {self.revision}; or set "
                    "task.path to a folder"
                )
        elif self.revision is not None:
            raise ValueError(
                f"task.revision={self.revision} needs task.source=datasets without task.path: got "
                f"source={self.source}, path={self.path}"
            )

    @property
    def name(self) -> str:
        """The source, as rows and tables print it."""
        pinned = None if self.revision is None else f"{self.dataset}@{self.revision[:10]}"
        public = pinned or "Swiss-Prot"
        return source_name(self.source, self.path, partial=self.partial, public=public)

    @property
    def licence(self) -> str:
        """The licence of the sequences."""
        return GENERATED if self.source is ProteinSource.sample else LICENCE

    def facts(self) -> dict[str, object]:
        """Return everything that decides the stored sequences.

        Raises:
            NotPrepared: A file is missing.
        """
        facts: dict[str, object] = {
            "source": self.source.value,
            "shares": self.shares,
            "duplicates": self.duplicates.value,
        }
        if self.partial:
            facts["partial"] = True
        if self.source is ProteinSource.files:
            facts["content"] = content(fasta_files(self.path))
        elif self.source is ProteinSource.datasets:
            facts["column"] = self.column
            given = self.path is not None
            facts["content"] = content(self._tables()) if given else [self.dataset, self.revision]
        if self.families is not None:
            pfam.check(self.families)
            facts["families"] = content([self.families])
            facts["held_out_families"] = self.held_out_families
        return facts

    def _tables(self) -> list[Path]:
        """Return the files in the folder `path`; raise `NotPrepared` if there is none."""
        assert self.path is not None
        tables = sorted(file for file in self.path.rglob("*") if file.is_file())
        if not tables:
            raise NotPrepared(
                f"task.path={self.path} contains no file; set task.path to a folder of parquet or "
                f"CSV files with the column {self.column}"
            )
        return tables

    def records(self) -> Iterator[ProteinRecord]:
        """Yield all sequences."""
        if self.source is ProteinSource.sample:
            return sample()
        if self.source is ProteinSource.datasets:
            return from_datasets(self.dataset, self.revision, self.path, self.column)
        return from_files(fasta_files(self.path))

    def blocks(self, counts: Counter[str]) -> Iterator[tuple[str, RaggedRows]]:
        """Yield the sequences in blocks, each with the name of its split; see `split_blocks`."""
        excluded: frozenset[bytes] = frozenset()
        if self.families is not None:
            annotated = pfam.read_accessions(self.families, self.held_out_families)
            excluded = pfam.held_out(self.records(), annotated, origin=str(self.families))
        splitter = Splitter(
            validation=self.shares["validation"], test=self.shares["test"], held_out=excluded
        )
        drop = self.duplicates is Duplicates.drop
        yield from split_blocks(self.records(), splitter, drop=drop, counts=counts)
        if self.source is not ProteinSource.sample:
            check_whole(
                {"the data set": counts.total()},
                {"the data set": SWISS_PROT},
                where=self.name,
                of="sequences",
                partial=self.partial,
                at_least=True,
            )
