"""Backgrounds from books of PG-19, of which each split has its books."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from lra.tasks.data.published_data import source_name
from lra.tasks.data.stored_task import MISSING
from lra.tasks.errors import BadData
from lra.tasks.haystacks.byte_rows import ByteRows, Dice, whole_words
from lra.tasks.language.pg19 import PG19, PG19Source
from lra.tasks.language.pg19_files import LICENCE
from lra.tasks.task import TaskSpec

MOST_BYTES = 1 << 26
"""The first books of a split are in memory, up to so many bytes."""


@dataclass(kw_only=True, eq=False)
class BookRows(ByteRows):
    """A base class of rows whose background may be text of books.

    Lines of books are joined by blanks. Rows begin at any word of a split's books, in order of
    their numbers, and the first book follows the last.
    """

    incidental: ClassVar[frozenset[str]] = frozenset({"path"})

    source: PG19Source = PG19Source.files
    """With haystack=text: files, datasets or sample, as for task=pg19."""
    path: str | None = None
    """With haystack=text: folder of the books, as for task=pg19; null: the cache, or the hub."""

    @property
    @abstractmethod
    def reads_books(self) -> bool:
        """Whether the background is text of books."""

    def rows_of(self, difficulty: str, *, ending: int, sentences: int, because: str) -> None:
        """Check the options, and set what follows from them; see `ByteRows`.

        Raises:
            ValueError: Options name books that are not read.
        """
        super().rows_of(difficulty, ending=ending, sentences=sentences, because=because)
        self._texts: dict[str, bytes] = {}
        self.library = PG19(source=self.source, path=self.path) if self.reads_books else None
        if not self.reads_books and (self.source is not PG19Source.files or self.path is not None):
            raise ValueError(
                f"task.source={self.source} and task.path={self.path} name books, which only "
                "task.haystack=text reads: set it, or remove these options"
            )

    @cached_property
    def spec(self) -> TaskSpec:
        """The facts about this task; the hash of the data includes that of the books."""
        spec = super().spec
        if self.library is None:
            return spec
        books = source_name(self.source, self.library.path, partial=False, public="PG-19")
        if self.library.content == MISSING:
            self.lacking = self.library.lacking
            spec = replace(spec, data_hash=MISSING)
        return replace(spec, source=f"{books}, {spec.source}")

    @property
    def licence(self) -> str:
        """Licence of the rows."""
        return LICENCE if self.reads_books else super().licence

    def _added_facts(self) -> dict[str, object]:
        """Return further facts that decide the rows: the hash of the books."""
        books = {} if self.library is None else {"books": self.library.content}
        return super()._added_facts() | books

    def background(self, split: str, dice: Dice, size: int) -> bytes:
        """Return the bytes between the sentences of a row: whole words, padded with blanks."""
        if self.library is None:
            return super().background(split, dice, size)
        if split not in self._texts:
            self._texts[split] = self._read(split)
        text = self._texts[split]
        if size > len(text):
            raise BadData(
                f"{self.spec.source}: the books of {split} have {len(text):,} bytes, and a row "
                f"needs {size:,}; add books, or lower the length"
            )
        start = text.rfind(b" ", 0, dice.below(len(text))) + 1
        part = text[start : start + size + 1]
        return whole_words(part + text[: size + 1 - len(part)], size)

    def _read(self, split: str) -> bytes:
        """Return the text of a split with single blanks, and one at its end."""
        assert self.library is not None
        texts, size = [], 0
        for book in self.library.books(split):
            texts.append(b" ".join(book.text.split()))
            size += len(texts[-1]) + 1
            if size >= MOST_BYTES:
                break
        return b" ".join([*texts, b""])[:MOST_BYTES]
