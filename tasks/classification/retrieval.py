"""Byte-level document retrieval (AAN, arXiv:2011.04006): does one paper cite the other?

    text 1   "A  Maximum Entropy …"   bytes + 1, cut to max_length      tokens [2, l]
    text 2   "Statistical …"
    target   1: one cites the other, 0: neither does

Both texts go through the same encoder, without attention between them; the head joins the two
vectors (`model.backbone.interaction`: `concat` as in the released code, `nli` as in the paper).
Data: `new_aan_pairs.{train,eval,test}.tsv`, 147,086 / 18,090 / 17,437 pairs of papers of the ACL
Anthology Network, in the archive of the Long Range Arena; `path` names their folder. Fewer or other
pairs are refused, unless `partial` says that they are a part. Papers recur across the splits, pairs
do not. `source=sample` is a small synthetic set for trials.
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
"""Of each text, as in the original code; `max_length` cuts further."""
BLOCK = 2000


class RetrievalSource(StrEnum):
    """Where the pairs come from."""

    files = auto()
    sample = auto()


class Retrieval(ClassificationTask):
    """The task; see the module's text.

    Args:
        source: files or sample.
        path: Folder of the three TSV files, packed or not, or the archive's that holds it.
        partial: Whether they hold a part of the pairs, or others; every row then says so.
        max_length: Bytes kept of each text, at most 10,000.
        cut: Which bytes are kept of longer texts: first, random_in_training (a random piece, anew
            in each epoch; evaluation keeps the first) or random (in evaluation too, drawn once).
        padded_length: Tokens of every row, padding included, for models that padding reaches; None
            pads to the longest row of each batch.
        bucket_batches: Training batches that are formed together by length; None groups nothing:
            batches are cut from the shuffled split, and evaluation keeps the split's order.
        objective: What a model answers: classify; or masked, causal, prefix, unilm or
            permutation (tokens).
        masked_share: Of the tokens, where some are asked for; null: 15 %.
        masked_replacement: What stands in their place: mask, or bert (80/10/10).
    """

    shift = 1
    incidental: ClassVar[frozenset[str]] = frozenset({"path", "partial"})
    """Options that change no number: the content, and that it is a part, are in the data hash."""

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
        """The facts. With `source=files` the files must be there: their hashes are the identity."""
        sample = self.source is RetrievalSource.sample
        spec = TaskSpec(
            name="retrieval",
            version=VERSION,
            kind=Kind.pair,
            vocabulary=257,
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
        path = data_root() / "downloads" / pairs.FOLDER if self.path is None else self.path
        return arena.find_task_folder(path, pairs.FOLDER, pairs.present)

    def _identity(self) -> str:
        facts: dict[str, object] = {"version": VERSION, "source": self.source.value}
        if self.partial:
            facts["partial"] = True
        if self.source is RetrievalSource.files:
            facts |= {s: remembered_sha256(pairs.find_split(self._folder(), s)) for s in SPLITS}
        return identity_of(facts)

    @property
    def folder(self) -> Path:
        """Where the prepared data lie; one store serves every `max_length`."""
        return data_root() / f"retrieval-{self.source}-{self.spec.data_hash}"

    def copies_allowed(self, first: str, second: str) -> float:
        """Return the share of pairs in both splits."""
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
        every, number = iter(self._read(split)), 0
        while block := list(islice(every, BLOCK)):
            number += len(block)
            texts = [text for pair in block for text in (pair.first, pair.second)]
            rows = [np.frombuffer(text, np.uint8) for text in texts]
            yield from_rows(rows, np.array([pair.label for pair in block], np.uint8))
        if self.source is RetrievalSource.files:
            numbers, wanted = {split: number}, {split: pairs.PUBLIC_SIZES[split]}
            check_whole(numbers, wanted, where=self.spec.source, of="pairs", partial=self.partial)

    def _read(self, split: str) -> Iterable[CitationPair]:
        if self.source is RetrievalSource.sample:
            return pairs.sample_pairs(split)
        return pairs.read_pairs(pairs.find_split(self._folder(), split), longest=STORED_BYTES)

    def describe(self, split: str, index: int) -> str:
        """Return one pair and its label."""
        (first, second), target = self.example(split, index)
        texts = (row.tobytes().decode(errors="replace") for row in (first, second))
        meaning = "one cites the other" if target else "neither cites the other"
        return "\n---\n".join([*texts, f"-> {target} ({meaning})"])
