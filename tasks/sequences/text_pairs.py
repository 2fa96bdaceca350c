"""Your pairs of texts: a model writes the second text from the first, by configuration alone.

    lra run task=text_pairs task.train=mine.jsonl task.source_text=article task.target_text=summary

A CSV, TSV, JSON Lines or parquet file has a column of sources and one of targets, for example
articles and their summaries, questions and answers, or a sentence in two languages. Texts become
UTF-8 bytes, id = byte + 2; id 0 is padding, and id 1 begins and ends a target. Sources are cut to
`source_length` bytes and targets to `target_length`; a target that was cut has no end to predict.
Without a validation or test file, a share of train becomes this split. The hash of a pair decides,
so the split is the same on every machine, and copies of a pair stay together. Values are read
unchanged: see `lra.tasks.classification.table_files`.
"""

import math
from collections.abc import Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from lra.conf.bounds import check_least
from lra.conf.short_values import short
from lra.tasks.classification.split_files import SplitFiles
from lra.tasks.classification.table_files import table_records, text_bytes
from lra.tasks.data.rows import RowsTask
from lra.tasks.data.sources import data_root
from lra.tasks.data.storage import RaggedRows, from_rows
from lra.tasks.data.stored_task import identity_of
from lra.tasks.data.tokens import tally, unigram_baseline
from lra.tasks.errors import BadData
from lra.tasks.task import SPLITS, Baseline, Batch, Kind, Tally, TaskSpec
from lra.tasks.tensors import Tensor, torch

VERSION = 2
BOUNDARY = 1
VOCABULARY = 256 + 2


class TextPairs(RowsTask):
    """Sequence to sequence on pairs of your texts. The model reads and writes bytes.

    Args:
        train: File of the training pairs.
        validation: File to validate on; null: `validation_fraction` of train.
        test: File to test on; null: `test_fraction` of train.
        source_text: Name of the column of sources.
        target_text: Name of the column of targets.
        source_length: Number of bytes that a model reads of each source.
        target_length: Number of bytes that a model predicts of each target.
        validation_fraction: Share of train that becomes the validation split.
        test_fraction: Share of train that becomes the test split.
        bucket_batches: Number of training batches whose examples are sorted by length together, so
            that batches need less padding; null: no sorting.
    """

    shift = 1
    holds_text = True
    incidental: ClassVar[frozenset[str]] = frozenset({"train", "validation", "test"})
    """Options that are no part of a result's identity; the content of the files is."""

    def __init__(
        self,
        *,
        train: str | None = None,
        validation: str | None = None,
        test: str | None = None,
        source_text: str = "source",
        target_text: str = "target",
        source_length: int = 1000,
        target_length: int = 200,
        validation_fraction: float = 0.1,
        test_fraction: float = 0.1,
        bucket_batches: int | None = 16,
    ) -> None:
        if train is None:
            raise ValueError("task.train must be a file of pairs of texts: got null")
        lengths = {"source_length": source_length, "target_length": target_length}
        check_least(1, **lengths, bucket_batches=bucket_batches)
        if source_text == target_text:
            raise ValueError(
                f"task.source_text={short(source_text)} and "
                f"task.target_text={short(target_text)} must be different columns; change one name"
            )
        self.files = SplitFiles.resolve(
            {"train": train, "validation": validation, "test": test},
            {"validation": validation_fraction, "test": test_fraction},
        )
        self.columns = (source_text, target_text)
        self.cuts = (source_length, target_length)
        # A stored target has an end token in addition to its bytes.
        self.max_length, self.bucket_batches = max(self.cuts) + 1, bucket_batches

    @cached_property
    def spec(self) -> TaskSpec:
        """The facts about this task; the data hash is a hash of the files."""
        source, target = self.cuts
        return TaskSpec(
            name="text_pairs",
            version=VERSION,
            kind=Kind.sequence_to_sequence,
            vocabulary=VOCABULARY,
            classes=VOCABULARY,
            max_length=source + target + 1,
            padded=True,
            metric="accuracy",
            scores=frozenset({"exact_match"}),
            source=self.files.paths["train"].name,
            data_hash=self.content_hash(self._identity),
            masks=frozenset({"prefix"}),
            source_length=source,
            target_length=target + 1,
            sources_vary=True,
        )

    def _identity(self) -> str:
        """Return the hash of everything that decides the prepared data."""
        facts: dict[str, object] = {
            "version": VERSION,
            "columns": self.columns,
            "cuts": self.cuts,
            "shares": self.files.shares,
        }
        return identity_of(facts | self.files.hashes("file"))

    @property
    def folder(self) -> Path:
        """Folder of the prepared data."""
        return data_root() / f"text_pairs-{self.spec.data_hash}"

    def copies_allowed(self, first: str, second: str) -> float:
        """Return 1: your splits may have any number of pairs in common."""
        del first, second
        return 1.0

    def make(self) -> None:
        """Read the files, make missing splits, and store the bytes of the texts."""
        pairs = {split: list(self._read_pairs(split)) for split in self.files.paths}
        self.files.hold_out(pairs, lambda pair: (b"\0".join(pair), 0))
        self.write(
            {split: self._stored(pairs[split]) for split in SPLITS},
            remarks=self.files.repeated(pairs, b"\0".join),
            vocabulary="a token is a byte + 2, 0 for padding, or 1, which begins and ends a target",
            columns=self.columns,
        )

    def _read_pairs(self, split: str) -> Iterator[tuple[bytes, bytes]]:
        """Yield the source and the target of each row of the file of `split`."""
        path, empty = self.files.paths[split], True
        for where, values in table_records(path, self.columns):
            empty = False
            source, target = (
                text_bytes(text, f"{path}, {where}, {name}")
                for text, name in zip(values, self.columns, strict=True)
            )
            yield source, target
        if empty:
            raise BadData(f"{path}: the {split} file has no rows")

    def _stored(self, pairs: list[tuple[bytes, bytes]]) -> RaggedRows:
        """Return both texts of each pair, cut, as ids - 1; a target that is not cut ends with 0."""
        source_length, target_length = self.cuts
        rows: list[np.ndarray] = []
        for pair in pairs:
            source, target = (np.frombuffer(text, np.uint8).astype(np.uint16) + 1 for text in pair)
            fits = len(target) <= target_length
            ended = np.append(target, np.uint16(BOUNDARY - 1)) if fits else target[:target_length]
            rows += [source[:source_length], ended.astype(np.uint16)]
        return from_rows(rows, np.zeros(len(pairs), np.uint8), np.uint16)

    def visible_batch(self, batch: Batch, seed: int) -> Batch:
        """Return rows of a source, the boundary token and the target, padded at the end.

        `batch.tokens` [b, 2, l] are the sources and targets. Weights are 1 at tokens of targets.
        """
        del seed
        keep = batch.keep
        if keep is None:
            keep = torch.ones_like(batch.tokens, dtype=torch.bool)
        sources, targets = keep.sum(-1).T.tolist()
        length = max(map(sum, zip(sources, targets, strict=True)))
        tokens = torch.zeros(len(sources), length, dtype=torch.long)
        target = torch.zeros_like(tokens)
        for row, (start, size) in enumerate(zip(sources, targets, strict=True)):
            tokens[row, :start] = batch.tokens[row, 0, :start]
            answer = batch.tokens[row, 1, :size]
            tokens[row, start] = BOUNDARY
            tokens[row, start + 1 : start + size] = answer[:-1]
            target[row, start : start + size] = answer
        prefix, ends = torch.tensor(sources), torch.tensor([sources, targets]).sum(0)
        position = torch.arange(length)
        in_target = (position >= prefix[:, None]) & (position < ends[:, None])
        return batch._replace(
            tokens=tokens[:, None],
            target=target,
            keep=(position < ends[:, None])[:, None],
            weight=in_target.float(),
            prefix=prefix,
        )

    def tally(self, nll: Tensor, hit: Tensor, batch: Batch) -> Tally:
        """Sum the losses and hits over the tokens of targets; an example is a pair."""
        return tally(nll, hit, batch, {})

    def derived_metrics(self, split: str, loss: float) -> dict[str, float]:
        """Return further metrics from `loss`, the mean in nats per token."""
        del split
        return {"perplexity": math.exp(loss), "bits_per_token": loss / math.log(2)}

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the unigram baseline: frequencies of the targets' tokens in train."""
        frequencies, targets = self._count_targets("train"), self._count_targets(split)
        return [unigram_baseline(frequencies, targets, partial(self.derived_metrics, split))]

    def _count_targets(self, split: str) -> Int[np.ndarray, " v"]:
        """Return how often each token occurs in the targets of `split`."""
        data = self.split(split)
        rows = data.rows(np.arange(len(data.targets)))[1::2]
        return np.bincount(np.concatenate(rows).astype(np.int64) + 1, minlength=VOCABULARY)

    def describe(self, split: str, index: int) -> str:
        """Return an example as text: a source and its target."""
        texts = self.split(split).rows(np.array([index]))
        decoded = [
            (row[row > 0] - 1).astype(np.uint8).tobytes().decode(errors="replace") for row in texts
        ]
        return "\n-> ".join(decoded)
