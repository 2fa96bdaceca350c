"""Byte-level text classification: the sentiment of an IMDb review (as in arXiv:2011.04006).

    bytes    G    r   e    a   t    .
    id      72  115 102   98 117   47      (byte + 1; 0 pads)
    target  1                              (0 negative, 1 positive)

Data: the Large Movie Review Dataset v1.0 (Maas et al., ACL 2011; no licence stated, for research),
25,000 training and 25,000 test reviews, half of them positive. The task ignores the 50,000
unlabelled reviews, and refuses another number of reviews unless `partial` is set. `source=files`
reads the folder or archive `path`; without a `path`, it downloads the public archive once and
checks its hash. `source=datasets` uses the `datasets` library. `source=sample` is a few hundred
synthetic reviews for trials.
A model reads the first `max_length` bytes of a review, unchanged.

The validation split is taken from train, stratified by label. The hash of a text decides, so the
split is the same on every machine and for both real sources, and copies of a text stay together
(train repeats 96 of its texts; 123 texts of test are in train as well).
`validation=test` validates on the test split, as the original benchmark did. Scores of models
chosen in this way are too good, because the test split chose them.
"""

from collections import Counter
from enum import StrEnum, auto
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
from jaxtyping import Integer

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
"""Number of reviews (Maas et al., ACL 2011, and the archive's README); half are positive."""


class TextSource(StrEnum):
    """Where the reviews come from."""

    files = auto()
    datasets = auto()
    sample = auto()


class Validation(StrEnum):
    """Which texts the validation split has."""

    split = auto()  # type: ignore[assignment]  # shadows str.split, unused here
    """A part of the training reviews, which train then lacks."""
    test = auto()
    """The test split itself."""


class Text(ClassificationTask):
    """Is a film review positive or negative? The model reads its bytes.

    Args:
        source: files, datasets or sample.
        path: With source=files, an archive, or the folder with train/ and test/ (or aclImdb/); with
            source=datasets, a folder that `datasets.load_dataset` reads. Null: the public data.
        partial: Whether `path` has only a part of the reviews, or others; every row then says so.
        max_length: Number of bytes that a model reads of each review (1000 in the original
            configuration; often 4000).
        cut: Which bytes of longer reviews a model reads: first, random_in_training (a new random
            piece in each epoch; the first bytes in evaluation) or random (a random piece in
            evaluation, too, drawn once).
        validation: split (a part of the training reviews) or test (the test reviews).
        validation_fraction: Share of the training reviews for validation, with validation=split.
        padded_length: Number of tokens to which every row is padded, for models that attend to
            padding; null: the longest row of each batch.
        bucket_batches: Number of training batches whose examples are sorted by length together, so
            that batches need less padding; null: no sorting.
        objective: What a model predicts: classify (a class), or masked, causal, prefix, unilm,
            permutation or replaced (tokens).
        masked_share: Fraction of tokens to draw, not for classify, causal and prefix; null: 15 %.
        masked_replacement: What masked tokens become: mask, or bert (80 % mask, 10 % random id).
        class_conditional: Whether a model predicts the bytes of a review given its sentiment; only
            with objective=causal and model.backbone.norm=conditional.
    """

    shift = 1
    condition_names = tuple(LABELS)

    incidental: ClassVar[frozenset[str]] = frozenset({"path", "partial"})
    """Options that are no part of a result's identity; the data hash stands for both."""

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
        class_conditional: bool = False,
    ) -> None:
        self.source, self.validation = source, validation
        # Synthetic reviews repeat a few words, so a search for common text would be useless.
        self.holds_text = source is not TextSource.sample
        check_lengths(
            "Text",
            max_length=max_length,
            padded_length=padded_length,
            bucket_batches=bucket_batches,
        )
        if not 0 < validation_fraction < 1:
            raise ValueError(
                f"task.validation_fraction must lie in (0, 1): got {validation_fraction}; to "
                "validate on the test split, set task.validation=test"
            )
        self.path, self.partial = given_path(path, source), partial
        check_partial(partial, path is not None)
        self.max_length, self.bucket_batches = max_length, bucket_batches
        self.padded_length, self.cut = padded_length, cut
        self.validation_fraction = validation_fraction
        self.answer(
            objective, masked_share, masked_replacement, class_conditional=class_conditional
        )

    @cached_property
    def spec(self) -> TaskSpec:
        """The facts about this task; with a `path`, the data hash is a hash of its files."""
        spec = TaskSpec(
            name="text",
            version=VERSION,
            kind=Kind.classification,
            vocabulary=257,  # 256 bytes and padding
            classes=2,
            max_length=self.padded_length or self.max_length,
            padded=True,
            metric="accuracy",
            source=self._source_name(),
            data_hash=self.content_hash(self._identity),
            sizes=self._sizes(),
        )
        return self.facts_of(spec)

    def encode(self, text: str) -> Integer[np.ndarray, " n"]:
        """Return the begin token and the bytes of a text, as objective=causal reads them."""
        begin = self.spec.vocabulary - 1
        return np.array([begin, *(byte + self.shift for byte in text.encode())])

    def decode(self, ids: Integer[np.ndarray, " n"]) -> str:
        """Return the text of these ids; padding and begin tokens have none."""
        real = ids[(ids > 0) & (ids <= 256)] - self.shift
        return real.astype(np.uint8).tobytes().decode(errors="replace")

    def _source_name(self) -> str:
        """Return the source as rows print it, with the name of the public data set."""
        public = "imdb" if self.source is TextSource.files else "imdb (datasets)"
        return source_name(self.source, self.path, partial=self.partial, public=public)

    def _identity(self) -> str:
        """Return the hash of everything that decides the prepared data."""
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
                f"download {PUBLIC_URL} ({PUBLIC_BYTES:,} bytes) and put the archive, or its "
                "unpacked folder aclImdb, at this path; or set task.source=sample for a trial; "
                f"{LICENCE}",
            )
        elif self.source is TextSource.files:
            facts["content"] = PUBLIC_SHA256
        elif self.source is TextSource.datasets:
            facts["content"] = f"{HUB_NAME}@{HUB_REVISION}"
        return identity_of(facts)

    def _sizes(self) -> dict[str, int]:
        """Return the number of examples by split; {} for the user's files."""
        if self.path is not None:
            return {}
        sizes = SAMPLE_SIZES if self.source is TextSource.sample else PUBLIC_SIZES
        if self.validation is Validation.test:
            return {"train": sizes["train"], "validation": sizes["test"], "test": sizes["test"]}
        # Each label has half of the reviews, and is split by itself.
        validation = 2 * round(sizes["train"] / 2 * self.validation_fraction)
        return {
            "train": sizes["train"] - validation,
            "validation": validation,
            "test": sizes["test"],
        }

    @property
    def folder(self) -> Path:
        """Folder of the prepared data; every `max_length` uses the same one."""
        return data_root() / f"text-{self.source}-{self.spec.data_hash}"

    def copies_allowed(self, first: str, second: str) -> float:
        """Return the share of texts that two splits may have in common; 0.5 % as published."""
        if self.validation is Validation.test and "train" not in (first, second):
            return 1.0
        return 0.0 if self.source is TextSource.sample else 0.01

    def describe(self, split: str, index: int) -> str:
        """Return an example as text: the review and its label."""
        (row,), target = self.example(split, index)
        sentiment = "positive" if target else "negative"
        return f"{row.tobytes().decode(errors='replace')}\n-> {target} ({sentiment})"

    def make(self) -> None:
        """Read the reviews, split them, and store their bytes."""
        reviews = self._read_reviews()
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
            for_validation = held_out(reviews["train"], self.validation_fraction)
            train = splits["train"]
            splits["validation"] = train.take(np.flatnonzero(for_validation))
            splits["train"] = train.take(np.flatnonzero(~for_validation))
        self.write(
            splits,
            vocabulary=BYTES,
            validation=self.validation.value,
            licence=GENERATED if self.source is TextSource.sample else LICENCE,
        )

    def _read_reviews(self) -> dict[str, Labelled]:
        """Return the reviews of train and test from the source; download them if necessary."""
        if self.source is TextSource.sample:
            return sample_reviews()
        if self.source is TextSource.datasets:
            return read_datasets(self.path)
        if self.path is None:
            target = data_root() / "downloads" / PUBLIC_URL.rpartition("/")[2]
            instructions = (
                f"download this file on another machine and put it at {target}, or set task.path "
                f"to your copy, or task.source=sample for a trial; {LICENCE}"
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
    """Return reviews as rows of bytes of different lengths, with their labels."""
    rows = [np.frombuffer(text, np.uint8) for text, _ in reviews]
    return from_rows(rows, np.array([label for _, label in reviews], np.uint8))
