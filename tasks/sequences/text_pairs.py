"""Your own pairs of texts: the second is answered from the first, by configuration alone.

    lra run task=text_pairs task.train=mine.jsonl task.source_text=article task.target_text=summary

A CSV, TSV, JSON Lines or parquet file with a column of sources and one of targets: articles and
their summaries, questions and answers, a sentence in two languages. Both become UTF-8 bytes, id =
byte + 2; 0 pads, 1 begins an answer and ends it. Sources are cut to `source_length` bytes and
targets to `target_length`; the end of a target that was cut is not asked for. Where no validation
or test file is given, a share of train is held out, chosen by the hash of the pair: the same on
every machine, and copies stay together. Values are read as they stand in a file: see
`lra.tasks.classification.table_files`.
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
    """The task; see the module's text.

    Args:
        train: File of the training pairs.
        validation: File to validate on; null: `validation_fraction` of train is held out.
        test: File to test on; null: `test_fraction` of train is held out.
        source_text: Name of the column of sources.
        target_text: Name of the column of targets.
        source_length: Bytes kept of each source.
        target_length: Bytes kept of each target.
        validation_fraction: Share of train.
        test_fraction: Share of train.
        bucket_batches: Training batches that are formed together by length; None groups nothing:
            batches are cut from the shuffled split, and evaluation keeps the split's order.
    """

    shift = 1
    holds_text = True
    incidental: ClassVar[frozenset[str]] = frozenset({"train", "validation", "test"})
    """Options that change no number: not part of a result's identity (their content is)."""

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
            raise ValueError("name a file of pairs by task.train: got null")
        lengths = {"source_length": source_length, "target_length": target_length}
        check_least(1, **lengths, bucket_batches=bucket_batches)
        if source_text == target_text:
            raise ValueError(
                f"task.source_text={short(source_text)} and "
                f"task.target_text={short(target_text)} must be different columns: name each once"
            )
        self.files = SplitFiles.resolve(
            {"train": train, "validation": validation, "test": test},
            {"validation": validation_fraction, "test": test_fraction},
        )
        self.columns = (source_text, target_text)
        self.cuts = (source_length, target_length)
        self.max_length, self.bucket_batches = max(self.cuts) + 1, bucket_batches

    @cached_property
    def spec(self) -> TaskSpec:
        """The facts. The files must be there: their hashes are the identity."""
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
            source=self.files.paths["train"].name,
            data_hash=self.content_hash(self._identity),
            masks=frozenset({"prefix"}),
            source_length=source,
            target_length=target + 1,
            sources_vary=True,
        )

    def _identity(self) -> str:
        facts: dict[str, object] = {
            "version": VERSION,
            "columns": self.columns,
            "cuts": self.cuts,
            "shares": self.files.shares,
        }
        return identity_of(facts | self.files.hashes("file"))

    @property
    def folder(self) -> Path:
        """Where the prepared data lie."""
        return data_root() / f"text_pairs-{self.spec.data_hash}"

    def copies_allowed(self, first: str, second: str) -> float:
        """Return the share of pairs in both splits: it is your data."""
        del first, second
        return 1.0

    def make(self) -> None:
        """Read the files and store the bytes of their texts."""
        pairs = {split: list(self._read(split)) for split in self.files.paths}
        self.files.hold_out(pairs, lambda pair: (b"\0".join(pair), 0))
        self.write(
            {split: self._stored(pairs[split]) for split in SPLITS},
            remarks=self.files.repeated(pairs, b"\0".join),
            vocabulary="byte + 2, 0 pads, 1 begins an answer and ends it",
            columns=self.columns,
        )

    def _read(self, split: str) -> Iterator[tuple[bytes, bytes]]:
        path, empty = self.files.paths[split], True
        for where, values in table_records(path, self.columns):
            empty = False
            source, target = (
                text_bytes(text, f"{path}, {where}, {name}")
                for text, name in zip(values, self.columns, strict=True)
            )
            yield source, target
        if empty:
            raise BadData(f"{path}: {split} contains no row")

    def _stored(self, pairs: list[tuple[bytes, bytes]]) -> RaggedRows:
        """Return both texts of each pair as ids less 1; a target that is whole ends with 0."""
        rows: list[np.ndarray] = []
        for pair in pairs:
            source, target = (np.frombuffer(text, np.uint8).astype(np.uint16) + 1 for text in pair)
            whole = len(target) <= self.cuts[1]
            ended = np.append(target, np.uint16(BOUNDARY - 1)) if whole else target[: self.cuts[1]]
            rows += [source[: self.cuts[0]], ended.astype(np.uint16)]
        return from_rows(rows, np.zeros(len(pairs), np.uint8), np.uint16)

    def visible_batch(self, batch: Batch, seed: int) -> Batch:
        """Return each source, the boundary and its target behind one another."""
        del seed
        keep = batch.keep
        if keep is None:
            keep = torch.ones_like(batch.tokens, dtype=torch.bool)
        sources, targets = keep.sum(-1).T.tolist()
        length = max(map(sum, zip(sources, targets, strict=True)))
        tokens = torch.zeros(len(sources), length, dtype=torch.long)
        target = torch.zeros_like(tokens)
        for row, (first, asked) in enumerate(zip(sources, targets, strict=True)):
            tokens[row, :first] = batch.tokens[row, 0, :first]
            answer = batch.tokens[row, 1, :asked]
            tokens[row, first] = BOUNDARY
            tokens[row, first + 1 : first + asked] = answer[:-1]
            target[row, first : first + asked] = answer
        prefix, ends = torch.tensor(sources), torch.tensor([sources, targets]).sum(0)
        place = torch.arange(length)
        asked_there = (place >= prefix[:, None]) & (place < ends[:, None])
        return batch._replace(
            tokens=tokens[:, None],
            target=target,
            keep=(place < ends[:, None])[:, None],
            weight=asked_there.float(),
            prefix=prefix,
        )

    def tally(self, nll: Tensor, hit: Tensor, batch: Batch) -> Tally:
        """Sum losses in nats and hits over the tokens of targets; an example is a pair."""
        return tally(nll, hit, batch, {})

    def derived_metrics(self, split: str, loss: float) -> dict[str, float]:
        """Return what follows from the mean loss in nats per token."""
        del split
        return {"perplexity": math.exp(loss), "bits_per_token": loss / math.log(2)}

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the unigram baseline: frequencies of the targets' tokens in train."""
        frequencies, right = self._targets("train"), self._targets(split)
        return [unigram_baseline(frequencies, right, partial(self.derived_metrics, split))]

    def _targets(self, split: str) -> Int[np.ndarray, " v"]:
        data = self.split(split)
        rows = data.rows(np.arange(len(data.targets)))[1::2]
        return np.bincount(np.concatenate(rows).astype(np.int64) + 1, minlength=VOCABULARY)

    def describe(self, split: str, index: int) -> str:
        """Return a source and its target."""
        texts = self.split(split).rows(np.array([index]))
        decoded = [
            (row[row > 0] - 1).astype(np.uint8).tobytes().decode(errors="replace") for row in texts
        ]
        return "\n-> ".join(decoded)
