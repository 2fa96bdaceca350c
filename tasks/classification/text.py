"""Byte-level text classification: the sentiment of an IMDb review (as in arXiv:2011.04006).

    bytes    G    r   e    a   t    .
    id      72  115 102   98 117   47      (byte + 1; 0 pads)
    target  1                              (0 negative, 1 positive)

Data: the Large Movie Review Dataset v1.0 (Maas et al., ACL 2011; no licence stated, for research),
25,000 training and 25,000 test reviews, half of them positive; its 50,000 unlabelled ones are not
read. Fewer or others are refused, unless `partial` says that they are a part. `source=files` reads
the public archive (fetched once and checked when `path` is not given) or the folder or archive that
`path` names; `source=datasets` goes through `datasets`; `source=sample` is a few hundred synthetic
sentences for trials, labelled so.
Bytes are kept as they are and cut to the first `max_length`.

The validation split is held out from train, stratified by label, chosen by the hash of the text:
it is the same on every machine and for both real sources, and copies of one text stay together
(train repeats 96 of its texts; 123 texts of test also stand in train).
`validation=test` is the habit of the original benchmark, to validate on the test split: numbers
selected that way are selected on test.
"""

from collections import Counter
from enum import StrEnum, auto
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np

from lra.tasks.classification.base import ClassificationTask
from lra.tasks.classification.objectives import InputObjective, MaskedReplacement
from lra.tasks.classification.reviews import (
    HUB_NAME,
    HUB_REVISION,
    LABELS,
    LICENCE,
    PARTS,
    PUBLIC_BYTES,
    PUBLIC_SHA256,
    PUBLIC_URL,
    SAMPLE_SIZES,
    Labelled,
    read_archive,
    read_datasets,
    read_folder,
    sample_reviews,
)
from lra.tasks.data.batching import Piece, check_lengths
from lra.tasks.data.held_out import held_out
from lra.tasks.data.published_data import check_partial, check_whole, given_path, source_name
from lra.tasks.data.sources import data_root, download, path_identity
from lra.tasks.data.storage import RaggedRows, from_rows
from lra.tasks.data.stored_task import BYTES, GENERATED, identity_of
from lra.tasks.task import Kind, TaskSpec

VERSION = 1
PUBLIC_SIZES = {"train": 25000, "test": 25000}
"""Maas et al., ACL 2011, and the archive's README; half of each is positive."""


class TextSource(StrEnum):
    """Where the reviews come from."""

    files = auto()
    datasets = auto()
    sample = auto()


class Validation(StrEnum):
    """What the validation split is."""

    split = auto()  # type: ignore[assignment]  # shadows str.split, unused here
    """Held out from train."""
    test = auto()
    """The test split itself."""


class Text(ClassificationTask):
    """The task; see the module's text.

    Args:
        source: files, datasets or sample.
        path: files: an archive, or the folder that holds train/ and test/ (or aclImdb/);
            datasets: a folder that `datasets.load_dataset` reads. Not given: the public data.
        partial: Whether `path` holds a part of the reviews, or others; every row then says so.
        max_length: Bytes kept of each review (1000 in the original configuration; often 4000).
        cut: Which bytes are kept of longer reviews: first, random_in_training (a random piece, anew
            in each epoch; evaluation keeps the first) or random (in evaluation too, drawn once).
        validation: split or test.
        validation_fraction: Share of train that is held out with `validation=split`.
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
        source: TextSource = TextSource.files,
        path: str | None = None,
        partial: bool = False,
        max_length: int = 1000,
        cut: Piece = Piece.first,
        validation: Validation = Validation.split,
        validation_fraction: float = 0.1,
        padded_length: int | None = None,
        bucket_batches: int | None = 16,
        objective: InputObjective = InputObjective.classify,
        masked_share: float | None = None,
        masked_replacement: MaskedReplacement = MaskedReplacement.mask,
    ) -> None:
        self.source, self.validation = source, validation
        self.holds_text = source is not TextSource.sample  # whose sentences come from few words
        check_lengths(
            "Text",
            max_length=max_length,
            padded_length=padded_length,
            bucket_batches=bucket_batches,
        )
        if not 0 < validation_fraction < 1:
            raise ValueError(
                f"task.validation_fraction must be from 0 to 1: got {validation_fraction}; to "
                "validate on the test split, set task.validation=test"
            )
        self.path, self.partial = given_path(path, source), partial
        check_partial(partial, path is not None)
        self.max_length, self.bucket_batches = max_length, bucket_batches
        self.padded_length, self.cut = padded_length, cut
        self.validation_fraction = validation_fraction
        self.answer(objective, masked_share, masked_replacement)

    @cached_property
    def spec(self) -> TaskSpec:
        """The facts. With a `path` the data must be there: their content is the identity."""
        spec = TaskSpec(
            name="text",
            version=VERSION,
            kind=Kind.classification,
            vocabulary=257,
            classes=2,
            max_length=self.padded_length or self.max_length,
            padded=True,
            metric="accuracy",
            source=self._source_name(),
            data_hash=self.content_hash(self._identity),
            sizes=self._sizes(),
        )
        return self.facts_of(spec)

    def _source_name(self) -> str:
        public = "imdb" if self.source is TextSource.files else "imdb (datasets)"
        return source_name(self.source, self.path, partial=self.partial, public=public)

    def _identity(self) -> str:
        facts: dict[str, object] = {
            "version": VERSION,
            "source": self.source.value,
            "validation": self.validation.value,
        }
        if self.validation is Validation.split:
            facts["validation_fraction"] = self.validation_fraction
        if self.partial:
            facts["partial"] = True
        if self.path is not None:
            facts["content"] = path_identity(
                self.path,
                f"put {PUBLIC_URL} ({PUBLIC_BYTES:,} bytes) or its unpacked folder aclImdb there, "
                f"or set task.source=sample for a trial; {LICENCE}",
            )
        elif self.source is TextSource.files:
            facts["content"] = PUBLIC_SHA256
        elif self.source is TextSource.datasets:
            facts["content"] = f"{HUB_NAME}@{HUB_REVISION}"
        return identity_of(facts)

    def _sizes(self) -> dict[str, int]:
        if self.path is not None:
            return {}
        sizes = SAMPLE_SIZES if self.source is TextSource.sample else PUBLIC_SIZES
        if self.validation is Validation.test:
            return {"train": sizes["train"], "validation": sizes["test"], "test": sizes["test"]}
        # Both data sets are balanced.
        held = 2 * round(sizes["train"] / 2 * self.validation_fraction)
        return {"train": sizes["train"] - held, "validation": held, "test": sizes["test"]}

    @property
    def folder(self) -> Path:
        """Where the prepared data lie; one store serves every `max_length`."""
        return data_root() / f"text-{self.source}-{self.spec.data_hash}"

    def copies_allowed(self, first: str, second: str) -> float:
        """Return the share of texts in both splits: 0.5 % of test stands in train as published."""
        if self.validation is Validation.test and "train" not in (first, second):
            return 1.0
        return 0.0 if self.source is TextSource.sample else 0.01

    def describe(self, split: str, index: int) -> str:
        """Return one review and its label."""
        (row,), target = self.example(split, index)
        sentiment = "positive" if target else "negative"
        return f"{row.tobytes().decode(errors='replace')}\n-> {target} ({sentiment})"

    def make(self) -> None:
        """Read the reviews and store their bytes."""
        reviews = self._read()
        if self.source is not TextSource.sample:
            counted = {part: Counter(label for _, label in reviews[part]) for part in PARTS}
            check_whole(
                {f"{p}/{name}": counted[p][label] for p in PARTS for name, label in LABELS.items()},
                {f"{p}/{name}": PUBLIC_SIZES[p] // len(LABELS) for p in PARTS for name in LABELS},
                where=self.spec.source,
                of="reviews",
                partial=self.partial,
            )
        splits: dict[str, RaggedRows] = {part: _ragged(reviews[part]) for part in PARTS}
        if self.validation is Validation.test:
            splits["validation"] = splits["test"]
        else:
            held = held_out(reviews["train"], self.validation_fraction)
            everything = np.arange(len(reviews["train"]))
            train = splits["train"]
            splits["validation"] = train.take(everything[held])
            splits["train"] = train.take(everything[~held])
        self.write(
            splits,
            vocabulary=BYTES,
            validation=self.validation.value,
            licence=GENERATED if self.source is TextSource.sample else LICENCE,
        )

    def _read(self) -> dict[str, Labelled]:
        if self.source is TextSource.sample:
            return sample_reviews()
        if self.source is TextSource.datasets:
            return read_datasets(self.path)
        if self.path is None:
            target = data_root() / "downloads" / PUBLIC_URL.rpartition("/")[2]
            instructions = (
                f"download it elsewhere and put it at {target}, or name your copy by task.path, "
                f"or set task.source=sample for a synthetic trial; {LICENCE}"
            )
            return read_archive(
                download(
                    PUBLIC_URL,
                    target,
                    size=PUBLIC_BYTES,
                    sha256=PUBLIC_SHA256,
                    instructions=instructions,
                )
            )
        return read_folder(self.path) if self.path.is_dir() else read_archive(self.path)


def _ragged(reviews: Labelled) -> RaggedRows:
    rows = [np.frombuffer(text, np.uint8) for text, _ in reviews]
    return from_rows(rows, np.array([label for _, label in reviews], np.uint8))
