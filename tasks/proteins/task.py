"""Language modelling of protein sequences (arXiv:2009.14794), a token for each residue.

    form=single, objective=causal      tokens   < M K T A Y I A K Q     target  M K T A Y I A K Q R
    form=single, objective=masked      tokens   M K _ A Y I A _ Q R     judged      T         K
    form=concatenated                  tokens   M K T A Y > M S D L     target  K T A Y > M S D L …

single: one sequence is an example, its first `max_length` residues. Causal models read a begin
token and all residues but the last, and answer every residue. For masked ones each residue is
replaced by the mask token with probability 15 % (always by the mask, and one residue of a sequence
at least); they answer, and are judged on, these alone. Which ones depends on (seed, index) alone;
in evaluation they are drawn once and for all.

concatenated: the whole sequences, an end token before each, are one stream for each split, cut as
in `lra.tasks.language.base`; windows of 8,192 as published. Causal only.

The score is per residue: no begin, end, padding or mask token is ever an answer that counts, in
training, in evaluation or in the baselines. The metric is perplexity, exp(mean loss in nats).

Splits go by the hash of the sequence: identical sequences stay together, and by default the later
ones are dropped. Similar sequences are not kept apart, as published; for that give `families`, a
table that UniProt exports: all members of `held_out_families` are then in neither train nor
validation, and are what `test=families` tests on.

Data: UniProt, CC BY 4.0; published numbers are on TrEMBL of January 2019. Fewer sequences than
Swiss-Prot has are refused, unless `partial` says that they are a part. `source=sample` is
generated and labelled so.
"""

from collections import Counter
from collections.abc import Iterator
from enum import StrEnum, auto
from functools import cached_property, partial
from pathlib import Path
from typing import ClassVar

import numpy as np
from jaxtyping import Int, Integer

from lra.tasks.data.batching import check_lengths
from lra.tasks.data.masking import draw_tokens
from lra.tasks.data.rows import RowsTask
from lra.tasks.data.sources import data_root
from lra.tasks.data.storage import RaggedRows
from lra.tasks.data.stored_task import identity_of
from lra.tasks.data.tokens import unigram_baseline
from lra.tasks.language.base import LanguageTask, Regime, count_tokens
from lra.tasks.proteins.alphabet import (
    BEGIN,
    END,
    FIRST,
    MASK,
    PAD,
    SYMBOLS,
    VOCABULARY,
    encode_residues,
    to_text,
)
from lra.tasks.proteins.data import Duplicates, ProteinData, ProteinSource
from lra.tasks.proteins.sources import PUBLIC_DATASET
from lra.tasks.proteins.splits import FAMILIES
from lra.tasks.task import Baseline, Batch, Kind, Task, TaskSpec
from lra.tasks.tensors import Tensor, torch

VERSION = 1
MASKED = 0.15
BATCH_SIZE = 256
LINE = 60
"""Residues of a line that is shown."""


class Objective(StrEnum):
    """What the model answers."""

    causal = auto()
    """Each residue from those before it."""
    masked = auto()
    """Masked residues from all others."""


class ProteinForm(StrEnum):
    """What an example is."""

    single = auto()
    """A sequence."""
    concatenated = auto()
    """A window of the stream of all sequences."""


LENGTHS = {ProteinForm.single: 1024, ProteinForm.concatenated: 8192}
"""As published."""


class JudgedSplit(StrEnum):
    """What the test split is."""

    hashed = auto()
    """The share of the sequences that their hash says."""
    families = auto()
    """The held-out families."""


class Proteins(RowsTask, LanguageTask):
    """The task; see the module's text. It is read as rows or as a stream, by `form`.

    Args:
        source: files, datasets or sample.
        path: files: a FASTA file or a folder of them (not given: Swiss-Prot in the cache's
            downloads); datasets: a folder of parquet or CSV files.
        partial: Whether these are less than Swiss-Prot; every row then says so.
        dataset: Name on the hub, where source=datasets and no path is given.
        revision: Of that data set, 40 hexadecimal digits.
        column: Of the sequences in a data set.
        families: A table that UniProt exports, with the columns Entry and Pfam; source=files only.
        held_out_families: Pfam accessions; empty: the 20 published ones.
        test: hashed or families: what the test split is.
        validation_fraction: Share of the sequences.
        test_fraction: Share of the sequences.
        duplicates: drop or keep.
        objective: causal or masked.
        form: single or concatenated.
        max_length: Residues of an example, or tokens of a window; null: 1,024, or 8,192.
        regime: How evaluation cuts the stream; concatenated only, as are the next three.
        stride: Tokens from one sliding window to the next.
        memory: Tokens that a state remembers, for regime=memory.
        contiguous: Whether training rows go on from batch to batch, instead of shuffled windows.
        bucket_batches: Training batches that are formed together by length, single only; None
            groups nothing: batches are cut from the shuffled split, and evaluation keeps the
            split's order.
    """

    incidental: ClassVar[frozenset[str]] = frozenset({"path", "partial", "families"})
    """Options that change no number: not part of a result's identity (their content is)."""

    def __init__(
        self,
        *,
        source: ProteinSource = ProteinSource.files,
        path: str | None = None,
        partial: bool = False,
        dataset: str = PUBLIC_DATASET,
        revision: str | None = None,
        column: str = "Sequence",
        families: str | None = None,
        held_out_families: list[str] = [],  # noqa: B006
        test: JudgedSplit = JudgedSplit.hashed,
        validation_fraction: float = 0.05,
        test_fraction: float = 0.05,
        duplicates: Duplicates = Duplicates.drop,
        objective: Objective = Objective.causal,
        form: ProteinForm = ProteinForm.single,
        max_length: int | None = None,
        regime: Regime = Regime.non_overlapping,
        stride: int | None = None,
        memory: int = 0,
        contiguous: bool = False,
        bucket_batches: int | None = 16,
    ) -> None:
        self.data = ProteinData(
            source=source,
            path=path,
            partial=partial,
            dataset=dataset,
            revision=revision,
            column=column,
            families=families,
            held_out_families=held_out_families,
            validation_fraction=validation_fraction,
            test_fraction=test_fraction,
            duplicates=duplicates,
        )
        self.objective, self.form, self.test = objective, form, test
        if self.test is JudgedSplit.families and families is None:
            raise ValueError("test=families needs a table of families: name it by task.families")
        length = LENGTHS[self.form] if max_length is None else max_length
        check_lengths("Proteins", max_length=length, bucket_batches=bucket_batches)
        if self.form is ProteinForm.concatenated and self.objective is Objective.masked:
            raise ValueError(
                "form=concatenated is for causal models: got objective=masked; set form=single"
            )
        streamed = regime is not Regime.non_overlapping or stride or memory or contiguous
        if self.form is ProteinForm.single and streamed:
            raise ValueError(
                "task.regime, stride, memory and contiguous need form=concatenated: got "
                f"form=single, regime={regime}, stride={stride}, memory={memory}, "
                f"contiguous={contiguous}"
            )
        self.read_as(
            length=length, regime=regime, stride=stride, memory=memory, contiguous=contiguous
        )
        # A stored row begins with an end token.
        self.max_length, self.bucket_batches = length + 1, bucket_batches

    @cached_property
    def spec(self) -> TaskSpec:
        """The facts. Files must be there: their hashes are the identity."""
        masked = self.objective is Objective.masked
        return TaskSpec(
            name="proteins_masked" if masked else "proteins",
            version=VERSION,
            kind=Kind.masked_modelling if masked else Kind.language_modelling,
            vocabulary=VOCABULARY,
            classes=VOCABULARY,
            max_length=self.length,
            padded=self.form is ProteinForm.single,
            metric="perplexity",
            source=self.data.name,
            data_hash=self.content_hash(
                lambda: identity_of({"version": VERSION, **self.data.facts()})
            ),
            regime=self._regime_name(),
            memory=self.memory,
        )

    def _regime_name(self) -> str:
        text = "masked residues" if self.objective is Objective.masked else "next residue"
        if self.form is ProteinForm.concatenated:
            text = f"concatenated, {self.regime_text}"
        return f"{text}, held-out families" if self.test is JudgedSplit.families else text

    @property
    def folder(self) -> Path:
        """Where the prepared data lie; one store serves every objective, form and length."""
        return data_root() / f"proteins-{self.data.source}-{self.spec.data_hash}"

    def copies_allowed(self, first: str, second: str) -> float:
        """Return the share of what a model sees of `second` that it may see in `first` as well.

        Sequences of two splits differ, but may do so behind `max_length` or in the last residue.
        """
        del first, second
        return 0.0 if self.data.source is ProteinSource.sample else 0.02

    def make(self) -> None:
        """Read the sequences and store their ids."""
        counts: Counter[str] = Counter()
        self.write(
            self.data.blocks(counts),
            vocabulary=SYMBOLS.decode(),
            licence=self.data.licence,
            sequences=counts,  # complete when the manifest is written, behind the last block
        )

    def split(self, name: str) -> RaggedRows:
        """Return what is stored of a split; the test split is the one that `test` says."""
        if name == "test" and self.test is JudgedSplit.families:
            return self.store().splits[FAMILIES]
        return super().split(name)

    @property
    def _reading(self) -> type[RowsTask] | type[LanguageTask]:
        return RowsTask if self.form is ProteinForm.single else LanguageTask

    def examples(self, split: str) -> int:
        """Return the number of sequences, or of windows."""
        return self._reading.examples(self, split)

    def lengths(self, split: str) -> Int[np.ndarray, " n"]:
        """Return the residues of every sequence, or the tokens of every window."""
        if self.form is ProteinForm.concatenated:
            return LanguageTask.lengths(self, split)
        return RowsTask.lengths(self, split) - 1  # a stored row begins with an end token

    def with_windows(self, length: int) -> Task:
        """Return this task with training windows of `length` tokens; ValueError for single rows."""
        if self.form is ProteinForm.single:
            raise ValueError(
                f"windows of {length} tokens need a stream: got task.form=single, whose rows "
                "are sequences; set task.form=concatenated"
            )
        return super().with_windows(length)

    def batches(
        self,
        split: str,
        *,
        batch_size: int,
        seed: int,
        rank: int = 0,
        ranks: int = 1,
        start: int = 0,
    ) -> Iterator[Batch]:
        """Yield one epoch of `split`, from this rank's batch number `start` on."""
        epoch = self._reading.batches(
            self, split, batch_size=batch_size, seed=seed, rank=rank, ranks=ranks, start=start
        )
        return epoch if self.form is ProteinForm.single else map(residues_alone, epoch)

    def visible_batch(self, batch: Batch, seed: int) -> Batch:
        """Return stored rows, an end token and residues each, as the objective says."""
        stored = batch.tokens[:, 0]
        residues = stored[:, 1:].contiguous()
        there = residues != PAD
        keep = None if batch.keep is None else there
        if self.objective is Objective.masked:
            drawn = torch.from_numpy(
                draw_tokens(there.numpy(), batch.index.numpy(), seed=seed, share=MASKED)
            )
            weight: Tensor | None = drawn.float()
            tokens = residues.masked_fill(drawn, MASK)
        else:
            tokens = torch.where(there, stored[:, :-1], PAD)
            tokens[:, 0] = BEGIN
            weight = None if keep is None else keep.float()
        return batch._replace(
            tokens=tokens[:, None],
            target=residues,
            keep=None if keep is None else keep[:, None],
            weight=weight,
        )

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the baseline of residue frequencies, on exactly the answers that are judged.

        The frequencies are those of the residues that a model sees of train.
        """
        residues = slice(FIRST, None)
        frequencies = self._counted("train", judged=False).numpy()[residues]
        seen = self._counted(split, judged=True).numpy()[residues]
        return [unigram_baseline(frequencies, seen, partial(self.derived_metrics, split))]

    def _counted(self, split: str, *, judged: bool) -> Int[Tensor, " v"]:
        """Count the residues of a split that a model sees, or those that are judged."""
        if self.form is ProteinForm.concatenated:
            return torch.from_numpy(count_tokens(self.split(split).tokens, VOCABULARY))
        total = torch.zeros(VOCABULARY, dtype=torch.int64)
        every = np.arange(self.examples(split))
        plan = np.split(every, range(BATCH_SIZE, len(every), BATCH_SIZE))
        for batch in self.read(split, plan, 0):
            there = batch.target != PAD
            if judged and batch.weight is not None:
                there &= batch.weight > 0
            total += torch.bincount(batch.target[there], minlength=VOCABULARY)
        return total

    def encode(self, text: str) -> Integer[np.ndarray, " n"]:
        """Return the ids of residues and signs. ValueError for other letters."""
        return encode_residues(text)

    def decode(self, ids: Integer[np.ndarray, " n"]) -> str:
        """Return how ids are written."""
        return to_text(ids)

    def describe(self, split: str, index: int) -> str:
        """Return an example as evaluation shows it, and the masked residues where there are."""
        number = self.examples(split)
        if not 0 <= index < number:
            raise IndexError(f"{split} has examples 0 to {number - 1}: got {index}")
        data = self.split(split)
        if self.form is ProteinForm.concatenated:
            return _wrapped(to_text(data.tokens[index * self.length : (index + 1) * self.length]))
        (row,) = data.rows(np.array([index]))
        residues = np.array(row[1 : self.max_length])
        if self.objective is Objective.causal:
            return _wrapped(to_text(residues))
        drawn = draw_tokens(
            np.ones((1, len(residues)), bool), np.array([index]), seed=0, share=MASKED
        )
        masked = np.where(drawn[0], MASK, residues)
        return f"{_wrapped(to_text(masked))}\n-> {to_text(residues[drawn[0]])}"


def residues_alone(batch: Batch) -> Batch:
    """Return a batch of a stream in which an answer counts where it is a residue."""
    weight = (batch.target != END).float()
    return batch._replace(weight=weight if batch.weight is None else weight * batch.weight)


def _wrapped(text: str) -> str:
    return "\n".join(text[first : first + LINE] for first in range(0, len(text), LINE))
