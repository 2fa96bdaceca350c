"""Classification of DNA sequences, or of windows of genomes, letter by letter.

    letters   A  C  G  T  N  a
    id        1  2  3  4  5  1      (case=fold; case=keep: 6 for a; 0 pads)

The forms of files are those of `lra.tasks.classification.dna.files`: folders as GenomicBenchmarks
unpacks (Grešová et al., BMC Genomic Data 2023), FASTA files, intervals of a genome, or tables.
`source=sample` draws Markov chains (`lra.tasks.classification.dna.chains`). With a `window`, each
FASTA file is a class, for example a species, and an example is a piece of `window` bases.

Splits without files are taken from train, stratified by class: the hash of `data_seed` and the
sequence decides. Windows do not overlap, so splits share no base of a genome.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum, auto
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from lra.conf.short_values import short_list, short_repr
from lra.tasks.baselines.seen_examples import SeenExamples
from lra.tasks.classification.base import ClassificationTask, baseline
from lra.tasks.classification.dna import baselines, chains, files
from lra.tasks.classification.dna.alphabet import (
    BASES,
    COMPLEMENT,
    LETTERS,
    UNKNOWN,
    BaseReader,
    LetterCase,
    to_letters,
)
from lra.tasks.classification.dna.files import DnaRow, GenomeInterval
from lra.tasks.classification.objectives import InputObjective, MaskedReplacement
from lra.tasks.classification.split_files import SplitFiles
from lra.tasks.data.batching import Draw, check_lengths
from lra.tasks.data.masking import words_of
from lra.tasks.data.published_data import given_path, named_path, source_name
from lra.tasks.data.sources import data_root, path_identity
from lra.tasks.data.storage import RaggedRows, from_rows
from lra.tasks.data.stored_task import GENERATED, identity_of
from lra.tasks.data.tokens import correlation, hits_by
from lra.tasks.errors import BadData, NotPrepared
from lra.tasks.task import SPLITS, Baseline, Batch, Kind, TaskSpec
from lra.tasks.tensors import torch

log = logging.getLogger(__name__)

VERSION = 1
ROWS_AT_ONCE = 1000
USUAL_LENGTH = 5000
"""Most bases that are read without windows; GenomicBenchmarks has up to 4,707."""


class DnaSource(StrEnum):
    """Where the sequences come from."""

    files = auto()
    sample = auto()


class Strands(StrEnum):
    """What a model reads of the two strands of a sequence."""

    none = auto()
    """The stored strand."""
    augment = auto()
    """In training, one of the strands, drawn for each sequence in each epoch."""
    both = auto()
    """Both, as a pair of sequences."""


class Dna(ClassificationTask):
    """Which class has this DNA sequence? The model reads its letters.

    Args:
        source: files, or sample (Markov chains, whose best possible score is known).
        path: Folder or archive of sequences, folder of FASTA files or intervals, or table.
        genome: FASTA file, or folder of them, for intervals; null: there are none.
        labels: Every class, in order; null: the sorted names of the folders or files in train.
        sequence: Name of a table's column of sequences.
        label: Name of a table's column of labels.
        window: Number of bases of an example, which is a piece of a longer sequence; null: an
            example is a whole sequence.
        max_length: Number of bases that a model reads; null: `window`, or 5,000.
        case: fold (lower case counts as upper case) or keep (separate ids).
        reverse_complement: augment (in training, a random strand) or both (both strands as a
            pair); else a model reads the stored strand.
        validation_fraction: Share of train that becomes the validation split, if there is none.
        test_fraction: Share of train that becomes the test split, if there is none.
        data_seed: Seed of these splits.
        bucket_batches: Number of training batches whose examples are sorted by length together, so
            that batches need less padding; null: no sorting.
        objective: What a model predicts: classify (a class), or masked, causal, prefix, unilm,
            permutation or replaced (tokens).
        masked_share: Fraction of tokens to draw, not for classify, causal and prefix; null: 15 %.
        masked_replacement: What masked tokens become: mask, or bert (80 % mask, 10 % random id).
    """

    incidental: ClassVar[frozenset[str]] = frozenset({"path", "genome"})
    """Options that are no part of a result's identity; the data hash stands for them."""

    def __init__(
        self,
        *,
        source: DnaSource = DnaSource.files,
        path: str | None = None,
        genome: str | None = None,
        labels: list[str] | None = None,
        sequence: str = "sequence",
        label: str = "label",
        window: int | None = None,
        max_length: int | None = None,
        case: LetterCase = LetterCase.fold,
        reverse_complement: Strands = Strands.none,
        validation_fraction: float = 0.1,
        test_fraction: float = 0.1,
        data_seed: int = 0,
        bucket_batches: int | None = 16,
        objective: InputObjective = InputObjective.classify,
        masked_share: float | None = None,
        masked_replacement: MaskedReplacement = MaskedReplacement.mask,
    ) -> None:
        self.source, self.case, self.strands = source, case, reverse_complement
        self.path = given_path(path, source)
        self.genome = None if genome is None else named_path(genome)
        self.labels, self.columns = [str(each) for each in labels or ()], (sequence, label)
        self.window = window
        usual = USUAL_LENGTH if window is None else window
        self.max_length = usual if max_length is None else max_length
        self.bucket_batches, self.data_seed = bucket_batches, data_seed
        if labels is not None and (len(labels) < 2 or len({*self.labels}) < len(labels)):
            raise ValueError(
                "task.labels must list at least two labels, each once, or be null: got "
                f"{short_repr(self.labels)}"
            )
        if sequence == label:
            raise ValueError(
                f"task.sequence and task.label must be different columns: got {short_repr(label)}"
            )
        if window is not None and window < 1:
            raise ValueError(
                f"task.window must be at least 1, or null for whole sequences: got {window}"
            )
        if source is DnaSource.sample and (genome or labels):
            raise ValueError(
                "task.source=sample reads no files: got "
                f"genome={short_repr(genome)}, labels={self.labels}; remove these options, or set "
                "task.source=files"
            )
        check_lengths("Dna", max_length=self.max_length, bucket_batches=bucket_batches)
        shares = {"validation": validation_fraction, "test": test_fraction}
        self.files = SplitFiles({}, shares, salt=f"{data_seed} ".encode())
        self.answer(objective, masked_share, masked_replacement)
        if self.per_token and reverse_complement is Strands.both:
            raise ValueError(
                "task.reverse_complement=both needs objective=classify: got "
                f"objective={objective}; set task.reverse_complement=augment"
            )
        self.shift = int(window is None)
        self.names = self.labels or list(chains.CLASSES)
        """The classes; those of missing data are unknown."""

    @cached_property
    def spec(self) -> TaskSpec:
        """The facts about this task; the data hash is a hash of the files."""
        data_hash = self.content_hash(self._identity)  # finds the classes, too
        two = len(self.names) == 2 and not self.per_token
        spec = TaskSpec(
            name="dna" if self.window is None else "dna_species",
            version=VERSION,
            kind=Kind.pair if self.strands is Strands.both else Kind.classification,
            vocabulary=BASES * (1 + (self.case is LetterCase.keep)) + self.shift,
            classes=len(self.names),
            max_length=self.max_length,
            padded=bool(self.shift),
            metric="accuracy",
            scores=frozenset({"mcc"} if two else ()),
            source=source_name(self.source, self.path, partial=False),
            data_hash=data_hash,
        )
        return self.facts_of(spec)

    def _identity(self) -> str:
        """Return the hash of everything that decides the prepared data, and find the classes."""
        facts: dict[str, object] = {
            "version": VERSION,
            "source": self.source.value,
            "case": self.case.value,
            "shares": self.files.shares,
            "data_seed": self.data_seed,
            "window": self.window,
        }
        if self.source is DnaSource.files:
            if self.path is None:
                raise NotPrepared(
                    f"task.path=null; set it to a folder with {files.FORMS}, or set "
                    "task.source=sample for a trial"
                )
            facts["content"] = path_identity(self.path, f"wanted a folder with {files.FORMS}")
            self.places = files.split_places(self.path)
            self.names = self._class_names()
            facts |= {"labels": self.names, "columns": self.columns}
            if self.genome is not None:
                facts["genome"] = path_identity(self.genome, "set task.genome to a FASTA file")
        return identity_of(facts)

    def _class_names(self) -> list[str]:
        """Return the classes in order: `labels`, or those of the files in train."""
        train = self.places["train"]
        if not train.is_dir():
            if not self.labels:
                raise BadData(
                    f"{train}: got task.labels=null; wanted every label of this file, in the order "
                    "of the classes, for example task.labels=[0,1]"
                )
            return self.labels
        found = list(files.class_places(train))
        if len(found) < 2:
            raise BadData(
                f"{train} has {len(found)} classes ({short_list(found)}); wanted at least two, as "
                f"{files.FORMS}"
            )
        if self.labels and {*self.labels} != {*found}:
            raise BadData(
                f"{train} has the classes {short_list(found)}, but task.labels="
                f"{short_repr(self.labels)}; list these classes, or set task.labels=null"
            )
        return self.labels or found

    @property
    def folder(self) -> Path:
        """Folder of the prepared data; every `max_length` uses the same one."""
        return data_root() / f"dna-{self.spec.data_hash}"

    def copies_allowed(self, first: str, second: str) -> float:
        """Return the share of `second` that may be in `first`; your files may have any number."""
        del first, second
        return float(self.source is DnaSource.files)

    def make(self) -> None:
        """Read the sequences, make missing splits, and store the numbers of the letters."""
        reader, places = BaseReader(self.case), {"train": Path(), "test": Path()}
        if self.source is DnaSource.sample:
            rows = {split: chains.sample_rows(split, self.window) for split in places}
        else:
            rows = {split: list[DnaRow]() for split in self.places}
            for split, row in self._read(reader):
                rows.setdefault(split, []).append(row)
            places = {split: self.places.get(split, self.places["train"]) for split in rows}
        if self.window is not None:
            rows = {split: self._windows(split, rows[split], self.window) for split in rows}
        self._check_classes(rows)
        splits = replace(self.files, paths=places)
        splits.hold_out(rows, lambda row: row.key)
        remarks = splits.repeated(rows, lambda row: row.key[0])
        if replaced := reader.report(self.spec.source):
            remarks["train"] = replaced
        self.write(
            {split: _blocks(rows[split]) for split in SPLITS},
            vocabulary=f"a token is the position of its letter in {LETTERS}",
            labels=self.names,
            remarks=remarks,
            licence=GENERATED if self.source is DnaSource.sample else "that of your files",
        )

    def _read(self, reader: BaseReader) -> Iterator[tuple[str, DnaRow]]:
        """Yield the split and the content of each sequence of the files."""
        numbers = {name: number for number, name in enumerate(self.names)}
        intervals: list[GenomeInterval] = []
        for split, place in self.places.items():
            if place.name.lower().endswith(files.ARCHIVES):
                yield from files.read_archive(place, numbers, reader)
                continue
            if not place.is_dir():
                for row in files.read_table(place, self.columns, numbers, reader):
                    yield split, row
                continue
            of_class = files.class_places(place)
            if {*of_class} != {*numbers}:
                raise BadData(
                    f"{place} has the classes {short_list(of_class)}; wanted those of train: "
                    f"{short_list(self.names)}; add the missing class, or remove the other one"
                )
            for name, label in numbers.items():
                source = of_class[name]
                if source.is_dir():
                    found: Iterable[DnaRow] = files.read_texts(source, label, reader)
                elif source.name.lower().endswith(files.ENDINGS):
                    found = files.read_fasta_class(source, label, reader)
                else:
                    intervals += files.read_intervals(source, split, label)
                    continue
                for row in found:
                    yield split, row
        yield from self._cut(intervals, reader)

    def _cut(
        self, intervals: Sequence[GenomeInterval], reader: BaseReader
    ) -> Iterator[tuple[str, DnaRow]]:
        """Yield the split and the sequence of each interval of the genome."""
        if intervals and self.genome is None:
            raise BadData(
                f"{self.path} has intervals, which need a genome: got task.genome=null; set it to "
                "the FASTA file of the genome"
            )
        if self.genome is not None:
            of_class = files.genome_files(self.genome, self.names)
            for genome in sorted({tuple(each) for each in of_class.values()}):
                part = [each for each in intervals if of_class[self.names[each.label]] == [*genome]]
                yield from files.cut(part, genome, reader)

    def _windows(self, split: str, records: Iterable[DnaRow], width: int) -> list[DnaRow]:
        """Return windows of `width` bases that do not overlap, without those of mostly N."""
        windows = [
            DnaRow(ids[start : start + width], label)
            for ids, label in records
            for start in range(0, len(ids) - width + 1, width)
        ]
        found = [row for row in windows if 2 * int((row.ids % BASES == UNKNOWN).sum()) <= width]
        if skipped := len(windows) - len(found):
            log.warning("%s: lra skips %d windows of %s, mostly N", self.path, skipped, split)
        return found

    def _check_classes(self, rows: dict[str, list[DnaRow]]) -> None:
        """Raise `BadData` unless each class has an example in each split that has files."""
        what = "sequence" if self.window is None else f"window of {self.window} bases"
        for split, found in rows.items():
            present = {row.label for row in found}
            if absent := [name for n, name in enumerate(self.names) if n not in present]:
                raise BadData(
                    f"{self.path}: {split} has no {what} of the class {short_list(absent)}; wanted "
                    "at least one of each class; add files of this class"
                    + ("" if self.window is None else ", or lower task.window")
                )

    def read(self, split: str, plan: Iterable[Int[np.ndarray, " _"]], seed: int) -> Iterator[Batch]:
        """Yield a batch, as a model reads it, of the example numbers in each entry of `plan`."""
        for batch in super().read(split, plan, seed):
            if self.strands is Strands.both:
                keep = None if batch.keep is None else batch.keep.expand(-1, 2, -1)
                tokens = torch.cat([batch.tokens, self._other_strand(batch)], 1)
                yield batch._replace(tokens=tokens, keep=keep)
            elif self.strands is Strands.augment and split == "train":
                (words,) = words_of(batch.index.numpy(), 1, seed=seed, draw=Draw.strand).T
                other = torch.from_numpy((words >> np.uint64(63)).astype(bool))[:, None, None]
                tokens = self._other_strand(batch).where(other, batch.tokens)
                yield batch._replace(tokens=tokens)
            else:
                yield batch

    def _other_strand(self, batch: Batch) -> "torch.Tensor":
        """Return the reverse complement [b, 1, l] of the tokens that a model reads."""
        letters = torch.from_numpy(COMPLEMENT.astype(np.int64)) + self.shift
        letters = torch.cat([torch.zeros(self.shift, dtype=torch.int64), letters])
        length = batch.tokens.shape[-1]
        place = torch.arange(length).expand(batch.tokens.shape)
        size = length if batch.keep is None else batch.keep.sum(-1, keepdim=True)
        # Padding stays where it is.
        return letters[batch.tokens.gather(-1, (size - 1 - place).where(place < size, place))]

    def lengths(self, split: str) -> Int[np.ndarray, " s"]:
        """Return the tokens that a model reads of each sequence of `split`; a pair has two."""
        return np.repeat(super().lengths(split), 1 + (self.strands is Strands.both))

    def seen(self, split: str) -> SeenExamples:
        """Return what a model reads of a split; baselines read the same."""
        return replace(super().seen(split), parts=1 + (self.strands is Strands.both))

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the baselines of `ClassificationTask`, those of DNA, and a known best score."""
        results = super().baselines(split)
        if self.per_token:
            return results
        train, data = self.seen("train"), self.seen(split)
        further = baselines.further_outcomes(train, data, self.spec.classes)
        results += [baseline(name, hit, text) for name, (hit, text) in further.items()]
        if self.source is DnaSource.sample:
            rows = [*data.rows(np.arange(len(data.targets)))][:: data.parts]
            results.append(
                baseline(
                    "ceiling_bayes",
                    np.array([chains.best_answer(row) for row in rows]) == data.targets,
                    "This program knows the chains that drew the sequences. No model can expect a "
                    "higher score.",
                )
            )
        if not self.spec.scores:
            return results
        targets = torch.from_numpy(data.targets.astype(np.int64))
        return [
            each._replace(
                measures={"mcc": correlation(hits_by(targets, hit, torch.ones(len(hit))))}
            )
            for each in results
            if (hit := each.outcomes) is not None
        ]

    def describe(self, split: str, index: int) -> str:
        """Return an example as text: its letters and its class."""
        (row,), target = self.example(split, index)
        return f"{to_letters(row)}\n-> {target} ({self.names[target]})"


def _blocks(rows: Sequence[DnaRow]) -> Iterator[RaggedRows]:
    """Yield sequences in blocks of `ROWS_AT_ONCE`."""
    for first in range(0, len(rows), ROWS_AT_ONCE):
        part = rows[first : first + ROWS_AT_ONCE]
        yield from_rows([row.ids for row in part], np.array([row.label for row in part]))
