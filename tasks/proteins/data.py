"""Which protein sequences a task reads, and how they are split."""

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
"""Sequences that every release since 2014 has at least, each another number (release notes of
UniProtKB/Swiss-Prot); TrEMBL has hundreds of times as many."""


class ProteinSource(StrEnum):
    """Where the sequences come from."""

    files = auto()
    datasets = auto()
    sample = auto()


class Duplicates(StrEnum):
    """What becomes of a sequence that came before."""

    drop = auto()
    keep = auto()


class ProteinData(ByName):
    """Sequences from one source; the options are those of `lra.tasks.proteins.task.Proteins`.

    Raises:
        ValueError: They do not fit together.
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
                raise ValueError(f"task.{name}_fraction must be from 0 to 0.5: got {share}")
        self._check_source()
        if self.families is not None and self.source is not ProteinSource.files:
            raise ValueError(
                "task.families needs the accessions of FASTA files: got "
                f"source={self.source}; set source=files"
            )
        if self.families is None and held_out_families:
            raise ValueError(
                f"task.held_out_families needs a table of families: got {held_out_families}; "
                "name the table by task.families"
            )
        for name in self.held_out_families:
            if not re.fullmatch(r"PF\d{5}", name):
                raise ValueError(
                    "task.held_out_families lists Pfam accessions, for example PF18369: got "
                    f"{short_repr(name)}"
                )

    def _check_source(self) -> None:
        if self.source is ProteinSource.datasets and self.path is None:
            if not re.fullmatch(r"[0-9a-f]{40}", self.revision or ""):
                raise ValueError(
                    f"task.revision pins the data set {self.dataset} by 40 hexadecimal digits, "
                    f"because a branch moves: got {self.revision}; or name a folder by task.path"
                )
        elif self.revision is not None:
            raise ValueError(
                f"task.revision needs source=datasets without a path: got source={self.source}, "
                f"path={self.path}, revision={self.revision}"
            )

    @property
    def name(self) -> str:
        """Return the source as rows and tables say it."""
        pinned = None if self.revision is None else f"{self.dataset}@{self.revision[:10]}"
        public = pinned or "Swiss-Prot"
        return source_name(self.source, self.path, partial=self.partial, public=public)

    @property
    def licence(self) -> str:
        """Return what the sequences may be used for."""
        return GENERATED if self.source is ProteinSource.sample else LICENCE

    def facts(self) -> dict[str, object]:
        """Return what decides the stored sequences.

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
        assert self.path is not None
        tables = sorted(file for file in self.path.rglob("*") if file.is_file())
        if not tables:
            raise NotPrepared(
                f"task.path={self.path}: no file there; with source=datasets it names a folder of "
                f"parquet or CSV files with the column {self.column}"
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
        """Yield the sequences by block, each with its split (`protein_splits.split_blocks`)."""
        held: frozenset[bytes] = frozenset()
        if self.families is not None:
            annotated = pfam.read_accessions(self.families, self.held_out_families)
            held = pfam.held_out(self.records(), annotated, origin=str(self.families))
        splitter = Splitter(
            validation=self.shares["validation"], test=self.shares["test"], held_out=held
        )
        drop = self.duplicates is Duplicates.drop
        yield from split_blocks(self.records(), splitter, drop=drop, counts=counts)
        if self.source is not ProteinSource.sample:
            check_whole(
                {"it": counts.total()},
                {"it": SWISS_PROT},
                where=self.name,
                of="sequences",
                partial=self.partial,
                at_least=True,
            )
