"""PG-19 (Rae et al. 2019, arXiv:1911.05507): the next sub-word of whole books.

    … ' the', ' vill', 'age', '.', '⏎', end of the book | ' Chap', 'ter', ' I', …

The books of Project Gutenberg from before 1919, 28,602 / 50 / 100 of them, 69,000 words each. They
follow one another in the order of their numbers, each with a token of its own at its end; the
store keeps where each begins. Line ends are single newlines. The vocabulary is open, so that any
sub-words will do: the metric `word_perplexity` is exp(summed nats / words), where the words of a
split are the published number of them (of a part: those that blanks separate here).

The public text is 11 GB: books are read one at a time and never held together.
`source=sample` is generated text for trials, labelled so.
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
"""Share by which counted words may depart from the published number: how those were counted is not
said, and half a book of the test split is as much."""


class PG19Source(StrEnum):
    """Where the books come from."""

    files = auto()
    datasets = auto()
    sample = auto()


class PG19(TokenisedTask):
    """The task; see the module's text.

    Args:
        source: files, datasets or sample.
        path: files: the folder of train/, validation/ and test/ with ID.txt; datasets: a folder of
            parquet files with the column `text`. Not given: the folder downloads/pg19 of the
            cache, or the hub.
        partial: Whether the books are a part of the corpus.
        errors: What becomes of bytes that are no UTF-8: strict (an error) or replace.
        subword_vocabulary: Number of ids, the end of a book among them. Not given: that of
            `tokenizer`, else 32,768 (sample: 400).
        subword_model: bpe or unigram.
        tokenizer: A tokenizer.json to use instead of learning one.
        within_documents: Whether a token sees those of its own book alone.
    """

    incidental: ClassVar[frozenset[str]] = frozenset({"path", "tokenizer"})
    """Options that change no number: the content of what they name is part of the data hash."""
    _opened: Any = None
    """Data set of the hub, once `make` reads it."""

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
        """The facts. With `source=files` the books are the identity, which is `MISSING` without."""
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
        """The sub-words: all ids but the last, which ends a book."""
        return Subwords(
            size=self.wanted,
            added=1,
            train=[self._content, self.errors.value],
            algorithm=self.algorithm,
            given=self.given,
        )

    @property
    def document_end(self) -> str:
        """How the last id is shown."""
        return "\n<end of book>\n"

    def _identity(self) -> str:
        if self._content == MISSING:
            return MISSING
        return identity_of(
            {
                "version": VERSION,
                "source": self.source.value,
                "partial": self.partial,
                "errors": self.errors.value,
                "content": self._content,
                "vocabulary": self.vocabulary,
                "tokenizer": self.tokeniser.recipe,
            }
        )

    @cached_property
    def _content(self) -> str:
        """What the books are known by, which the sub-words need before `spec` does."""
        return self.content_hash(self._known_by)

    def _known_by(self) -> str:
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
        return self.path if self.path is not None else data_root() / "downloads" / "pg19"

    @property
    def folder(self) -> Path:
        """Where the prepared data lie; one store serves every length and regime."""
        return data_root() / f"pg19-{self.source}-{self.spec.data_hash}"

    def make(self) -> None:
        """Read the books and store their ids."""
        if self.source is PG19Source.files:
            files.check_splits(self._location)
        elif self.source is PG19Source.datasets:
            self._opened = files.load_hub(self.path)
        self.write_encoded(
            licence=GENERATED if self.source is PG19Source.sample else files.LICENCE,
            end_of_book=self.vocabulary - 1,
        )

    def books(self, split: str) -> Iterator[Book]:
        """Yield the books of a split, from `make`."""
        if self.source is PG19Source.sample:
            return files.sample(split)
        if self.source is PG19Source.datasets:
            where = f"{self.spec.source}, {split}"
            return files.read_hub(self._opened[split], where, self.errors)
        return files.read_books(self._location, split, self.errors)

    def text(self, split: str) -> Iterator[LineBlock]:
        """Yield the text of a split."""
        for book in self.books(split):
            yield from text_blocks(book.text, book.where)

    def encoded(self, split: str, counted: dict[str, int]) -> Iterator[RaggedRows]:
        """Yield the ids of a split, and leave in `counted` how many words it has."""
        books = words = 0
        for book in self.books(split):
            books += 1
            for block in text_blocks(book.text, book.where):
                words += len(block.text.decode().split())
                yield piece(self.tokeniser.encode(block))
            yield end([self.vocabulary - 1], self.vocabulary)
        counted[split] = self._checked(split, books, words)

    def _checked(self, split: str, books: int, words: int) -> int:
        """Return the words that perplexity divides by; `BadData` where a whole split is not."""
        if self.partial or self.source is PG19Source.sample:
            return words
        wanted_books, wanted = files.BOOKS[split], files.WORDS[split]
        if books != wanted_books or abs(words - wanted) > TOLERANCE * wanted:
            raise BadData(
                f"{self.spec.source}: the {split} split has {books:,} books of {words:,} words, "
                f"wanted {wanted_books:,} of {wanted:,}: some are missing or truncated; if you "
                "want a part, set task.partial=true"
            )
        if words != wanted:
            log.info("pg19, %s: %d words counted, %d published", split, words, wanted)
        return wanted

    def document_starts(self, split: str) -> Int[np.ndarray, " d"]:
        """Return where each book of a split begins."""
        starts: Int[np.ndarray, " d"] = self.split(split).offsets[:-1]
        return starts
