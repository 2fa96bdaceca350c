"""PG-19's books: folders of ID.txt, rows of the hub, and a sample of the same form."""

import re
from collections.abc import Iterator
from enum import StrEnum, auto
from pathlib import Path
from typing import Any, NamedTuple

from lra.conf.short_values import short_repr
from lra.tasks.data import hub
from lra.tasks.data.bars import tqdm
from lra.tasks.data.lines import check_encoding, check_utf8, without_byte_order_mark
from lra.tasks.data.sources import data_root
from lra.tasks.errors import BadData, NotPrepared
from lra.tasks.language.characters import sample_text
from lra.tasks.task import SPLITS

HUB_NAME = "emozilla/pg19"
HUB_REVISION = "c021754c8e01c5b1cc83a1f549c1f97fbbb756b8"
BUCKET = "https://storage.googleapis.com/deepmind-gutenberg"
LICENCE = (
    "the licence of this collection is Apache-2.0, and its texts are in the public domain in the "
    "USA; please cite Rae et al. 2019"
)
BOOKS = {"train": 28_602, "validation": 50, "test": 100}
WORDS = {"train": 1_973_136_207, "validation": 3_007_061, "test": 6_966_499}
"""Numbers of books and of words by split (Rae et al. 2019, arXiv:1911.05507, table 2)."""
NUMBER = re.compile(r"(\d+)/?$")
SAMPLE_BYTES = 300_000
SAMPLE_BOOKS = {"train": 16, "validation": 2, "test": 2}


class DecodingErrors(StrEnum):
    """Treatment of bytes that are no UTF-8."""

    strict = auto()
    """Raise an error that names their position."""
    replace = auto()  # type: ignore[assignment]  # shadows str.replace, unused here
    """Read them as U+FFFD."""


class Book(NamedTuple):
    """One book."""

    where: str
    text: bytes
    """UTF-8, with a single newline at each line's end."""


def instructions(path: Path) -> str:
    """Return advice for a user without the books: which files to put where."""
    books = ", ".join(f"{split}/ID.txt ({number:,} books)" for split, number in BOOKS.items())
    return (
        f"download {books} from {BUCKET}/ (about 11 GB, without published hashes) into {path}, or "
        "set task.path to a folder with these files; for a part of them, set task.partial=true; or "
        f"set task.source=datasets to use {HUB_NAME}, or task.source=sample for a trial; {LICENCE}"
    )


def check_splits(folder: Path) -> None:
    """Raise `NotPrepared` unless `folder` has a subfolder for each split."""
    if not all((folder / split).is_dir() for split in SPLITS):
        wanted = ", ".join(f"{split}/" for split in SPLITS)
        raise NotPrepared(f"{folder} does not have the folders {wanted}; {instructions(folder)}")


def read_books(folder: Path, split: str, errors: DecodingErrors) -> Iterator[Book]:
    """Yield the books of a split in the order of their numbers.

    Raises:
        BadData: There is no book, or a file has no number as its name, is empty, or is no UTF-8.
    """
    numbers: dict[int, Path] = {}
    for path in (folder / split).iterdir():
        if path.suffix != ".txt" or not path.stem.isdecimal():
            raise BadData(
                f"{path} is no book, whose name is ID.txt, for example 10146.txt; move it elsewhere"
            )
        numbers[int(path.stem)] = path
    if not numbers:
        raise BadData(f"{folder / split} contains no books; {instructions(folder)}")
    for number in tqdm(sorted(numbers), desc=f"pg19, {split}", unit="book", disable=None):
        content = numbers[number].read_bytes()
        yield _decode_book(content, f"{split}/{number}.txt", errors)


def _decode_book(content: bytes, where: str, errors: DecodingErrors) -> Book:
    """Return a book with line feeds as line ends, in UTF-8; `where` names its file."""
    if not content.strip():
        raise BadData(
            f"{where} is an empty book ({len(content)} bytes); fetch this file again, or remove it"
        )
    check_encoding(content, where)
    content = without_byte_order_mark(content)
    if errors is DecodingErrors.replace:
        content = content.decode(errors="replace").encode()
    else:
        try:
            check_utf8(content, where)
        except BadData as error:
            raise BadData(f"{error}; or set task.errors=replace") from error
    return Book(where, content.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))


def load_hub(path: Path | None) -> Any:
    """Return the data set, from the hub or from a folder of parquet files.

    Raises:
        NotPrepared: Neither network nor cache has the data set, or the folder is missing.
        BadData: The data set cannot be read, or lacks a split or the column `text`.
    """
    folder = data_root() / "pg19-datasets"
    return hub.load(
        HUB_NAME,
        HUB_REVISION,
        path,
        columns=("text",),
        splits=SPLITS,
        instructions="on a machine with a network connection, download the parquet files of "
        f"https://huggingface.co/datasets/{HUB_NAME}/tree/{HUB_REVISION}/data, put them into "
        f"{folder} and set task.path={folder}; or set task.source=files or sample; {LICENCE}",
    )


def read_hub(rows: Any, where: str, errors: DecodingErrors) -> Iterator[Book]:
    """Yield the books in `rows`, ordered by the number at the end of the column `url`, if any.

    Raises:
        BadData: A row is no text, or there is no row.
    """
    order = list(range(len(rows)))
    if "url" in rows.column_names:
        urls = rows.select_columns("url").with_format("arrow")[:].column("url").to_pylist()
        matches = [NUMBER.search(str(url)) for url in urls]
        if all(matches):
            order.sort(key=lambda row: int(matches[row][1]))  # type: ignore[index]
    if not order:
        raise BadData(f"{where} has no rows; fetch the data again")
    for row in order:
        text = rows[row]["text"]
        if not isinstance(text, str):
            raise BadData(f"{where}, row {row}: the text is {short_repr(text)}; wanted a string")
        yield _decode_book(text.encode(), f"{where}, row {row}", errors)


def sample(split: str) -> Iterator[Book]:
    """Yield short books of made-up words, not from PG-19."""
    words = sample_text(SAMPLE_BYTES).split()
    number = sum(SAMPLE_BOOKS.values())
    # Books of the splits alternate, so that the splits have the same words: 7 and the number of
    # books, 20, have no common divisor, so `book * 7 % number` is another order of the books.
    split_of = [split for split, books in SAMPLE_BOOKS.items() for _ in range(books)]
    for book in range(number):
        if split_of[(book * 7) % number] == split:
            part = words[book * len(words) // number : (book + 1) * len(words) // number]
            lines = [b" ".join(part[first : first + 12]) for first in range(0, len(part), 12)]
            yield Book(f"sample, book {book}", b"\n".join(lines) + b"\n")
