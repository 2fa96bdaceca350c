"""Language modelling of protein sequences (arXiv:2009.14794), with a token for each residue.

    form=single, objective=causal      tokens   < M K T A Y I A K Q     target  M K T A Y I A K Q R
    form=single, objective=masked      tokens   M K _ A Y I A _ Q R     counts      T         K
    form=concatenated                  tokens   M K T A Y > M S D L     target  K T A Y > M S D L …

form=single: an example is one sequence, cut to its first `max_length` residues. A causal model
reads a begin token and all residues except the last, and predicts every residue. For a masked
model, each residue is replaced by the mask token with probability 15 %, at least one in each
sequence, and only these are predicted and scored. The choice depends on (seed, index) alone;
evaluation uses one fixed choice.

form=concatenated (causal only): all sequences of a split, with an end token before each, are one
text, cut into windows as in `lra.tasks.language.base`; the published windows have 8,192 tokens.

Only residues are scored: begin, end, padding and mask tokens never count, in training, evaluation
or baselines. The metric is perplexity, exp(mean loss in nats).

The hash of a sequence decides its split, so identical sequences stay together; by default, copies
are dropped. As in the paper, similar sequences may be in different splits. To avoid this, set
`families` to a table that UniProt exports: members of `held_out_families` are then in neither train
nor validation, and `test=families` tests on them.

The data are from UniProt, CC BY 4.0; published numbers use TrEMBL of January 2019. The task refuses
fewer sequences than Swiss-Prot has unless `partial` is set. `source=sample` is generated; its
results say `sample`.
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
"""Residues in a printed line."""


class Objective(StrEnum):
    """What the model predicts."""

    causal = auto()
    """Each residue from those before it."""
    masked = auto()
    """Masked residues from all other residues."""


class ProteinForm(StrEnum):
    """The form of an example."""

    single = auto()
    """One sequence."""
    concatenated = auto()
    """A window of all sequences, one after another."""


LENGTHS = {ProteinForm.single: 1024, ProteinForm.concatenated: 8192}
"""Published lengths of examples in tokens."""


class JudgedSplit(StrEnum):
    """The sequences of the test split."""

    hashed = auto()
    """A share of all sequences, chosen by their hashes."""
    families = auto()
    """The sequences of the excluded families."""


class Proteins(RowsTask, LanguageTask):
    """Predict residues of protein sequences.

    Args:
        source: files, datasets or sample.
        path: With source=files, a FASTA file or a folder of them (null: Swiss-Prot in the folder
            downloads of the cache); with source=datasets, a folder of parquet or CSV files.
        partial: Whether the data have fewer sequences than Swiss-Prot; every row then says so.
        dataset: Name of the data set on the hub, for source=datasets without a path.
        revision: Commit of `dataset`, 40 hexadecimal digits.
        column: Name of the column of sequences in a data set.
        families: A table from UniProt with the columns Entry and Pfam; only for source=files.
        held_out_families: Pfam accessions to exclude from training; empty: the 20 published ones.
        test: Sequences of the test split: hashed (by their hashes) or families (excluded ones).
        validation_fraction: Share of the sequences for validation.
        test_fraction: Share of the sequences for the test split.
        duplicates: Treatment of copies of a sequence: drop or keep.
        objective: causal or masked.
        form: single (sequences) or concatenated (windows of all sequences).
        max_length: Most residues of an example, or tokens of a window; null: 1,024, or 8,192.
        regime: How evaluation cuts the text into windows; only for form=concatenated, as are
            stride, memory and contiguous.
        stride: Number of tokens from one sliding window to the next.
        memory: Number of earlier tokens that a model remembers, for regime=memory.
        contiguous: Whether each row of a training batch continues the same row of the last batch.
        bucket_batches: Number of training batches whose examples are sorted by length together, so
            that batches need less padding; null: no sorting. Only for form=single.
    """

    incidental: ClassVar[frozenset[str]] = frozenset({"path", "partial", "families"})
    """Options that are no part of a result's identity; the content of the files is."""

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
            raise ValueError(
                "task.test=families needs task.families, a table of families: got families=null"
            )
        length = LENGTHS[self.form] if max_length is None else max_length
        check_lengths("Proteins", max_length=length, bucket_batches=bucket_batches)
        if self.form is ProteinForm.concatenated and self.objective is Objective.masked:
            raise ValueError(
                "task.form=concatenated needs task.objective=causal: got objective=masked; set "
                "task.form=single"
            )
        streamed = regime is not Regime.non_overlapping or stride or memory or contiguous
        if self.form is ProteinForm.single and streamed:
            raise ValueError(
                "task.regime, task.stride, task.memory and task.contiguous need "
                f"task.form=concatenated: got form=single with regime={regime}, stride={stride}, "
                f"memory={memory}, contiguous={contiguous}"
            )
        self.read_as(
            length=length, regime=regime, stride=stride, memory=memory, contiguous=contiguous
        )
        single = self.form is ProteinForm.single
        self.begin, self.unscored = (BEGIN, None) if single else (None, END)
        # A stored row has an end token in addition to its residues.
        self.max_length, self.bucket_batches = length + 1, bucket_batches

    @cached_property
    def spec(self) -> TaskSpec:
        """The facts about this task; the data hash is a hash of the files."""
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
        """Return what is predicted, from which form and of which test split, as tables print it."""
        text = "masked residues" if self.objective is Objective.masked else "next residue"
        if self.form is ProteinForm.concatenated:
            text = f"concatenated, {self.regime_text}"
        return f"{text}, held-out families" if self.test is JudgedSplit.families else text

    @property
    def folder(self) -> Path:
        """Folder of the prepared data; every objective, form and length uses the same one."""
        return data_root() / f"proteins-{self.data.source}-{self.spec.data_hash}"

    def copies_allowed(self, first: str, second: str) -> float:
        """Return the share of examples of `second` that may be in `first`.

        Sequences of two splits can be equal up to `max_length`.
        """
        del first, second
        return 0.0 if self.data.source is ProteinSource.sample else 0.02

    def make(self) -> None:
        """Read the sequences, split them, and store their ids."""
        counts: Counter[str] = Counter()
        self.write(
            self.data.blocks(counts),
            vocabulary=SYMBOLS.decode(),
            licence=self.data.licence,
            sequences=counts,  # `blocks` fills this before the manifest is written
        )

    def split(self, name: str) -> RaggedRows:
        """Return the stored rows of a split; the option `test` chooses those of the test split."""
        if name == "test" and self.test is JudgedSplit.families:
            return self.store().splits[FAMILIES]
        return super().split(name)

    @property
    def _reading(self) -> type[RowsTask] | type[LanguageTask]:
        """The base class whose methods read the data in this form."""
        return RowsTask if self.form is ProteinForm.single else LanguageTask

    def examples(self, split: str) -> int:
        """Return the number of sequences, or of windows."""
        return self._reading.examples(self, split)

    def lengths(self, split: str) -> Int[np.ndarray, " n"]:
        """Return the number of residues of every sequence, or of tokens of every window."""
        if self.form is ProteinForm.concatenated:
            return LanguageTask.lengths(self, split)
        return RowsTask.lengths(self, split) - 1  # a stored row begins with an end token

    def texts(self, split: str) -> Int[np.ndarray, "n 2"]:
        """Return where each sequence begins and ends, or the whole text for form=concatenated."""
        if self.form is ProteinForm.concatenated:
            return LanguageTask.texts(self, split)
        offsets = self.split(split).offsets
        return np.stack((offsets[:-1] + 1, offsets[1:]), axis=1)  # without the end token

    def with_windows(self, length: int) -> Task:
        """Return this task with training windows of `length`; ValueError for form=single."""
        if self.form is ProteinForm.single:
            raise ValueError(
                f"windows of {length} tokens need task.form=concatenated: got task.form=single, "
                "which reads whole sequences; set task.form=concatenated"
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
        """Return stored rows (an end token and residues) with masked or shifted residues."""
        stored = batch.tokens[:, 0]
        residues = stored[:, 1:].contiguous()
        real = residues != PAD
        keep = None if batch.keep is None else real
        if self.objective is Objective.masked:
            masked = torch.from_numpy(
                draw_tokens(real.numpy(), batch.index.numpy(), seed=seed, share=MASKED)
            )
            weight: Tensor | None = masked.float()
            tokens = residues.masked_fill(masked, MASK)
        else:
            tokens = torch.where(real, stored[:, :-1], PAD)
            tokens[:, 0] = BEGIN
            weight = None if keep is None else keep.float()
        return batch._replace(
            tokens=tokens[:, None],
            target=residues,
            keep=None if keep is None else keep[:, None],
            weight=weight,
        )

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the baseline of residue frequencies in train, on the residues that are scored."""
        residues = slice(FIRST, None)
        frequencies = self._count_residues("train", scored=False).numpy()[residues]
        targets = self._count_residues(split, scored=True).numpy()[residues]
        return [unigram_baseline(frequencies, targets, partial(self.derived_metrics, split))]

    def _count_residues(self, split: str, *, scored: bool) -> Int[Tensor, " v"]:
        """Return how often each residue occurs in `split`; if `scored`, only those that count."""
        if self.form is ProteinForm.concatenated:
            return torch.from_numpy(count_tokens(self.split(split).tokens, VOCABULARY))
        total = torch.zeros(VOCABULARY, dtype=torch.int64)
        examples = np.arange(self.examples(split))
        plan = np.split(examples, range(BATCH_SIZE, len(examples), BATCH_SIZE))
        for batch in self.read(split, plan, 0):
            counted = batch.target != PAD
            if scored and batch.weight is not None:
                counted &= batch.weight > 0
            total += torch.bincount(batch.target[counted], minlength=VOCABULARY)
        return total

    def encode(self, text: str) -> Integer[np.ndarray, " n"]:
        """Return the ids of residues and signs; raise ValueError for other letters."""
        return encode_residues(text)

    def decode(self, ids: Integer[np.ndarray, " n"]) -> str:
        """Return the signs of ids."""
        return to_text(ids)

    def describe(self, split: str, index: int) -> str:
        """Return an example of evaluation as text, with the masked residues if there are any."""
        number = self.examples(split)
        if not 0 <= index < number:
            raise IndexError(f"{split} has the examples 0 to {number - 1}: got example {index}")
        data = self.split(split)
        if self.form is ProteinForm.concatenated:
            return _wrapped(to_text(data.tokens[index * self.length : (index + 1) * self.length]))
        (row,) = data.rows(np.array([index]))
        residues = np.array(row[1 : self.max_length])  # without the end token before them
        if self.objective is Objective.causal:
            return _wrapped(to_text(residues))
        (masked,) = draw_tokens(
            np.ones((1, len(residues)), bool), np.array([index]), seed=0, share=MASKED
        )
        tokens = np.where(masked, MASK, residues)
        return f"{_wrapped(to_text(tokens))}\n-> {to_text(residues[masked])}"


def residues_alone(batch: Batch) -> Batch:
    """Return a batch of windows with weight 0 at end tokens, so that only residues count."""
    weight = (batch.target != END).float()
    return batch._replace(weight=weight if batch.weight is None else weight * batch.weight)


def _wrapped(text: str) -> str:
    """Return `text` in lines of `LINE` residues."""
    return "\n".join(text[first : first + LINE] for first in range(0, len(text), LINE))
