"""PG-19 (Rae et al. 2019, arXiv:1911.05507): the next sub-word of whole books.

    … ' the', ' vill', 'age', '.', '⏎', end of the book | ' Chap', 'ter', ' I', …

The data are 28,602 / 50 / 100 books of Project Gutenberg from before 1919, with 69,000 words each.
They are in the order of their numbers, and a special token ends each. Line ends are single
newlines. The vocabulary is open, so you can use any sub-words: the metric `word_perplexity` is
exp(summed nats / words), with the published number of words of a split (for a part of the data, the
number of words between blanks).

The public text has 11 GB, so the task reads one book at a time. `source=sample` is generated text
for trials; its results say `sample`.
"""

from collections.abc import Iterator
from enum import StrEnum, auto
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int

from lra.tasks.data.lines import LineBlock, text_blocks
from lra.tasks.data.published_data import check_partial, given_path, named_path, source_name
from lra.tasks.data.sources import data_root, folder_identity
from lra.tasks.data.storage import RaggedRows
from lra.tasks.data.stored_task import GENERATED, MISSING, identity_of
from lra.tasks.errors import BadData, NotPrepared
from lra.tasks.language import pg19_files as files
from lra.tasks.language.base import Regime
from lra.tasks.language.pg19_files import Book, DecodingErrors
from lra.tasks.language.subwords import Algorithm, Subwords
from lra.tasks.language.tokenised_task import TokenisedTask, end, log, piece
from lra.tasks.task import TaskSpec

VERSION = 2
SUBWORDS = 32_768
SAMPLE_SUBWORDS = 400
TOLERANCE = 0.005
"""Largest relative difference between the counted and the published number of words. The paper does
not say how it counts; half a book of the test split is as much."""


class PG19Source(StrEnum):
    """Where the books come from."""

    files = auto()
    datasets = auto()
    sample = auto()


class PG19(TokenisedTask):
    """Predict the next sub-word of books.

    Args:
        source: files, datasets or sample.
        path: With source=files, the folder of train/, validation/ and test/ with files ID.txt; with
            source=datasets, a folder of parquet files with the column `text`. Null: the folder
            downloads/pg19 of the cache, or the hub.
        partial: Whether the books are only a part of PG-19.
        errors: Treatment of bytes that are no UTF-8: strict (an error) or replace (by U+FFFD).
        subword_vocabulary: Number of ids, including the end of a book; null: that of `tokenizer`,
            or else 32,768 (sample: 400).
        subword_model: bpe or unigram.
        tokenizer: A tokenizer.json to use; null: learn sub-words from train.
        within_documents: Whether tokens attend only to their own book.
    """

    incidental: ClassVar[frozenset[str]] = frozenset({"path", "tokenizer"})
    """Options that are no part of a result's identity; the content of the files is."""

    def __init__(
        self,
        *,
        source: PG19Source = PG19Source.files,
        path: str | None = None,
        partial: bool = False,
        errors: DecodingErrors = DecodingErrors.strict,
        subword_vocabulary: int | None = None,
        subword_model: Algorithm = Algorithm.bpe,
        tokenizer: str | None = None,
        length: int = 512,
        evaluation_length: int | None = None,
        regime: Regime = Regime.non_overlapping,
        stride: int | None = None,
        memory: int = 0,
        contiguous: bool = False,
        within_documents: bool = False,
    ) -> None:
        self.source, self.errors = source, errors
        self.algorithm, self.partial = subword_model, partial
        check_partial(partial, self.source is not PG19Source.sample)
        self.path = given_path(path, source)
        self.given = named_path(tokenizer) if tokenizer is not None else None
        sample = self.source is PG19Source.sample
        self.wanted = subword_vocabulary
        if self.wanted is None and self.given is None:
            self.wanted = SAMPLE_SUBWORDS if sample else SUBWORDS
        self.read_as(
            length=length,
            evaluation_length=evaluation_length,
            regime=regime,
            stride=stride,
            memory=memory,
            contiguous=contiguous,
            within_documents=within_documents,
        )

    @cached_property
    def spec(self) -> TaskSpec:
        """The facts about this task; with source=files, the data hash is a hash of the books."""
        return self.stream_spec(
            name="pg19",
            version=VERSION,
            vocabulary=self.vocabulary,
            metric="word_perplexity",
            source=source_name(self.source, self.path, partial=self.partial),
            data_hash=self.content_hash(self._identity),
            tokenizer=self.tokenizer_text,
        )

    @property
    def vocabulary(self) -> int:
        """Number of ids."""
        return self.tokeniser.size

    @cached_property
    def tokeniser(self) -> Subwords:
        """The sub-words, for all ids except the last, which ends a book."""
        return Subwords(
            size=self.wanted,
            added=1,
            train=[self.content, self.errors.value],
            algorithm=self.algorithm,
            given=self.given,
        )

    @property
    def document_end(self) -> str:
        """Text for the last id."""
        return "\n<end of book>\n"

    def _identity(self) -> str:
        """Return the hash of everything that decides the prepared data."""
        if self.content == MISSING:
            return MISSING
        return identity_of(
            {
                "version": VERSION,
                "source": self.source.value,
                "partial": self.partial,
                "errors": self.errors.value,
                "content": self.content,
                "vocabulary": self.vocabulary,
                "tokenizer": self.tokeniser.recipe,
            }
        )

    @cached_property
    def content(self) -> str:
        """Hash of the books, which the sub-words need before `spec`."""
        return self.content_hash(self._hash_books)

    def _hash_books(self) -> str:
        """Return the hash of the books; raise `NotPrepared` if they are missing."""
        if self.source is PG19Source.sample:
            return f"sample {VERSION}"
        if self.source is PG19Source.datasets and self.path is None:
            return f"{files.HUB_NAME}@{files.HUB_REVISION}"
        if self._location.is_dir():
            return folder_identity(self._location)
        how = "is no folder" if self._location.exists() else "is missing"
        raise NotPrepared(f"{self._location} {how}; {files.instructions(self._location)}")

    @property
    def _location(self) -> Path:
        """The folder of the books, for source=files, or of the user's parquet files."""
        return self.path if self.path is not None else data_root() / "downloads" / "pg19"

    @property
    def folder(self) -> Path:
        """Folder of the prepared data; every length and regime uses the same one."""
        return data_root() / f"pg19-{self.source}-{self.spec.data_hash}"

    def make(self) -> None:
        """Read the books, encode them, and store the ids."""
        self.write_encoded(
            licence=GENERATED if self.source is PG19Source.sample else files.LICENCE,
            end_of_book=self.vocabulary - 1,
        )

    def books(self, split: str) -> Iterator[Book]:
        """Yield the books of `split`."""
        if self.source is PG19Source.sample:
            return files.sample(split)
        if self.source is PG19Source.datasets:
            where = f"{self.spec.source}, {split}"
            return files.read_hub(self._opened[split], where, self.errors)
        files.check_splits(self._location)
        return files.read_books(self._location, split, self.errors)

    @cached_property
    def _opened(self) -> Any:
        """The data set of the hub, or of the user's parquet files."""
        return files.load_hub(self.path)

    def text(self, split: str) -> Iterator[LineBlock]:
        """Yield the text of `split` in blocks."""
        for book in self.books(split):
            yield from text_blocks(book.text, book.where)

    def encoded(self, split: str, counted: dict[str, int]) -> Iterator[RaggedRows]:
        """Yield the ids of `split`, and store the number of its words in `counted`."""
        books = words = 0
        for book in self.books(split):
            books += 1
            for block in text_blocks(book.text, book.where):
                words += len(block.text.decode().split())
                yield piece(self.tokeniser.encode(block))
            yield end([self.vocabulary - 1], self.vocabulary)
        counted[split] = self._check_split(split, books, words)

    def _check_split(self, split: str, books: int, words: int) -> int:
        """Return the number of words for perplexity; raise `BadData` if books are missing."""
        if self.partial or self.source is PG19Source.sample:
            return words
        wanted_books, wanted = files.BOOKS[split], files.WORDS[split]
        if books != wanted_books or abs(words - wanted) > TOLERANCE * wanted:
            raise BadData(
                f"{self.spec.source}: the {split} split has {books:,} books with {words:,} words; "
                f"wanted {wanted_books:,} books with {wanted:,} words; fetch the missing or "
                "truncated books, or, to use a part, set task.partial=true"
            )
        if words != wanted:
            log.info(
                "the %s split of PG-19 has %d words by this count, and %d by the published one",
                split, words, wanted,
            )  # fmt: skip
        return wanted

    def document_starts(self, split: str) -> Int[np.ndarray, " d"]:
        """Return the position of each book's first token."""
        starts: Int[np.ndarray, " d"] = self.split(split).offsets[:-1]
        return starts
