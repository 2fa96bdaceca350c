"""Byte-level document retrieval (AAN, arXiv:2011.04006): does one paper cite the other?

    text 1   "A  Maximum Entropy …"   bytes + 1, cut to max_length      tokens [2, l]
    text 2   "Statistical …"
    target   1: one cites the other, 0: neither does

Both texts go through the same encoder, without attention between them; the head joins the two
vectors (`model.backbone.interaction`: `concat` as in the released code, `nli` as in the paper).
Data: `new_aan_pairs.{train,eval,test}.tsv`, 147,086 / 18,090 / 17,437 pairs of papers of the ACL
Anthology Network, from the archive of the Long Range Arena; `path` names their folder. The task
refuses another number of pairs unless `partial` is set. A paper may be in several splits, a pair is
in one. `source=sample` is a small synthetic set for trials.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum, auto
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import ClassVar

import numpy as np

from lra.tasks.classification import pairs
from lra.tasks.classification.base import ClassificationTask
from lra.tasks.classification.objectives import InputObjective, MaskedReplacement
from lra.tasks.classification.pairs import CitationPair
from lra.tasks.data import arena
from lra.tasks.data.batching import Piece, check_lengths
from lra.tasks.data.published_data import check_partial, check_whole, given_path, source_name
from lra.tasks.data.sources import data_root, remembered_sha256
from lra.tasks.data.storage import RaggedRows, from_rows
from lra.tasks.data.stored_task import BYTES, GENERATED, identity_of
from lra.tasks.task import SPLITS, Kind, TaskSpec

VERSION = 1
STORED_BYTES = 10_000
"""Most stored bytes of a text, as in the original code; `max_length` cuts further."""
BLOCK = 2000
"""Pairs that are stored together."""


class RetrievalSource(StrEnum):
    """Where the pairs come from."""

    files = auto()
    sample = auto()


class Retrieval(ClassificationTask):
    """Does one of two papers cite the other? The model reads the bytes of both texts.

    Args:
        source: files or sample.
        path: Folder of the three TSV files, compressed or not, or the unpacked archive.
        partial: Whether the files have only a part of the pairs, or others; every row then says so.
        max_length: Number of bytes that a model reads of each text, at most 10,000.
        cut: Which bytes of longer texts a model reads: first, random_in_training (a new random
            piece in each epoch; the first bytes in evaluation) or random (a random piece in
            evaluation, too, drawn once).
        padded_length: Number of tokens to which every row is padded, for models that attend to
            padding; null: the longest row of each batch.
        bucket_batches: Number of training batches whose examples are sorted by length together, so
            that batches need less padding; null: no sorting.
        objective: What a model predicts: classify (a class), or masked, causal, prefix, unilm,
            permutation or replaced (tokens).
        masked_share: Fraction of tokens to draw, not for classify, causal and prefix; null: 15 %.
        masked_replacement: What masked tokens become: mask, or bert (80 % mask, 10 % random id).
    """

    shift = 1
    incidental: ClassVar[frozenset[str]] = frozenset({"path", "partial"})
    """Options that are no part of a result's identity; the data hash stands for both."""

    def __init__(
        self,
        *,
        source: RetrievalSource = RetrievalSource.files,
        path: str | None = None,
        partial: bool = False,
        max_length: int = 4000,
        cut: Piece = Piece.first,
        padded_length: int | None = None,
        bucket_batches: int | None = 16,
        objective: InputObjective = InputObjective.classify,
        masked_share: float | None = None,
        masked_replacement: MaskedReplacement = MaskedReplacement.mask,
    ) -> None:
        self.source = source
        check_lengths(
            "Retrieval",
            max_length=max_length,
            padded_length=padded_length,
            bucket_batches=bucket_batches,
            most=STORED_BYTES,
        )
        self.path, self.partial = given_path(path, source), partial
        check_partial(partial, self.source is RetrievalSource.files)
        self.max_length, self.bucket_batches = max_length, bucket_batches
        self.padded_length, self.cut = padded_length, cut
        self.answer(objective, masked_share, masked_replacement)

    @cached_property
    def spec(self) -> TaskSpec:
        """The facts about this task; with source=files, the data hash is a hash of the files."""
        sample = self.source is RetrievalSource.sample
        spec = TaskSpec(
            name="retrieval",
            version=VERSION,
            kind=Kind.pair,
            vocabulary=257,  # 256 bytes and padding
            classes=2,
            max_length=self.padded_length or self.max_length,
            padded=True,
            metric="accuracy",
            source=source_name(self.source, self._folder(), partial=self.partial),
            data_hash=self.content_hash(self._identity),
            sizes=pairs.SAMPLE_SIZES if sample else {},
        )
        return self.facts_of(spec)

    def _folder(self) -> Path:
        """Return the folder of the TSV files."""
        path = data_root() / "downloads" / pairs.FOLDER if self.path is None else self.path
        return arena.find_task_folder(path, pairs.FOLDER, pairs.present)

    def _identity(self) -> str:
        """Return the hash of everything that decides the prepared data."""
        facts: dict[str, object] = {"version": VERSION, "source": self.source.value}
        if self.partial:
            facts["partial"] = True
        if self.source is RetrievalSource.files:
            facts |= {s: remembered_sha256(pairs.find_split(self._folder(), s)) for s in SPLITS}
        return identity_of(facts)

    @property
    def folder(self) -> Path:
        """Folder of the prepared data; every `max_length` uses the same one."""
        return data_root() / f"retrieval-{self.source}-{self.spec.data_hash}"

    def copies_allowed(self, first: str, second: str) -> float:
        """Return the share of pairs that two splits may have in common."""
        del first, second
        return 0.01

    def make(self) -> None:
        """Read the pairs and store their bytes."""
        self.write(
            {split: self._blocks(split) for split in SPLITS},
            vocabulary=BYTES,
            licence=GENERATED if self.source is RetrievalSource.sample else pairs.LICENCE,
        )

    def _blocks(self, split: str) -> Iterator[RaggedRows]:
        """Yield the rows of `split`, `BLOCK` pairs at a time; then check the number of pairs."""
        remaining, number = iter(self._pairs(split)), 0
        while block := list(islice(remaining, BLOCK)):
            number += len(block)
            texts = [text for pair in block for text in (pair.first, pair.second)]
            rows = [np.frombuffer(text, np.uint8) for text in texts]
            yield from_rows(rows, np.array([pair.label for pair in block], np.uint8))
        if self.source is RetrievalSource.files:
            numbers, wanted = {split: number}, {split: pairs.PUBLIC_SIZES[split]}
            check_whole(numbers, wanted, where=self.spec.source, of="pairs", partial=self.partial)

    def _pairs(self, split: str) -> Iterable[CitationPair]:
        """Return the pairs of `split` from the source."""
        if self.source is RetrievalSource.sample:
            return pairs.sample_pairs(split)
        return pairs.read_pairs(pairs.find_split(self._folder(), split), longest=STORED_BYTES)

    def describe(self, split: str, index: int) -> str:
        """Return an example as text: both papers and the label."""
        (first, second), target = self.example(split, index)
        texts = (row.tobytes().decode(errors="replace") for row in (first, second))
        meaning = "one cites the other" if target else "neither cites the other"
        return "\n---\n".join([*texts, f"-> {target} ({meaning})"])
