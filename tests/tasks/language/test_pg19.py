import shutil

import numpy as np
import pytest

from lra.tasks.errors import BadData, NotPrepared
from lra.tasks.language import pg19_files
from lra.tasks.language.pg19 import PG19, PG19Source
from lra.tasks.language.pg19_files import DecodingErrors
from lra.tasks.task import SPLITS

BOOKS = {
    "train/9.txt": b"The ninth book.\r\nIt ends\r\n",
    "train/10.txt": b"The tenth \xe2\x80\x93 here.\rOld line ends\n\n",
    "validation/3.txt": b"three words here",
    "test/200.txt": b"the last\n",
    "test/31.txt": b"the first\n",
}
TRAIN = ["The ninth book.\nIt ends\n", "The tenth – here.\nOld line ends\n\n"]


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "books"
    for name, text in BOOKS.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(text)
    return place


def part(path, **options):
    given = {"partial": True, "subword_vocabulary": 261, "length": 8}
    return PG19(path=str(path), **(given | options))


def rows(task, split):
    """The sequences of a split."""
    data = task.split(split)
    return data.rows(np.arange(len(data.targets)))


def test_books_come_by_number_each_with_its_end(folder):
    task = part(folder)
    task.prepare()
    books = rows(task, "train")
    assert [task.decode(np.asarray(book[:-1])) for book in books] == TRAIN
    assert [int(book[-1]) for book in books] == [260, 260]
    assert max(int(book[:-1].max()) for book in books) < 260
    assert task.spec.vocabulary == 261
    assert len(rows(task, "test")) == 2
    assert task.decode(np.asarray(task.split("test").tokens)) == (
        "the first\n\n<end of book>\nthe last\n\n<end of book>\n"
    )
    assert task.store().about["words"] == {"train": 12, "validation": 3, "test": 4}
    tokens = len(task.split("test").tokens)
    assert task.tokens_per_word("test") == (tokens - 1) / 4
    assert task.spec.tokenizer.startswith("bpe 261 ")
    assert task.spec == part(folder).spec
    assert task.describe("train", 0) == task.decode(np.asarray(task.split("train").tokens[:8]))


def test_rows_of_a_data_set_are_books(folder, tmp_path):
    import pyarrow
    import pyarrow.parquet

    plain = part(folder)
    plain.prepare()
    place = tmp_path / "parquet"
    place.mkdir()
    for split in SPLITS:
        files = sorted((folder / split).iterdir(), reverse=True)
        table = {
            "url": [f"http://www.gutenberg.org/ebooks/{file.stem}" for file in files],
            "text": [file.read_bytes().decode() for file in files],
        }
        pyarrow.parquet.write_table(pyarrow.table(table), place / f"{split}.parquet")
    task = part(place, source=PG19Source.datasets)
    task.prepare()
    for split in SPLITS:
        assert task.split(split).tokens.tolist() == plain.split(split).tokens.tolist()


def test_what_is_no_utf8(folder):
    (folder / "test" / "31.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(BadData, match=r"test/31\.txt: byte 3 is not UTF-8.*task\.errors=replace"):
        part(folder).prepare()
    task = part(folder, errors=DecodingErrors.replace)
    task.prepare()
    assert task.decode(np.asarray(rows(task, "test")[0][:-1])) == "caf�\n"
    assert task.spec.data_hash != part(folder).spec.data_hash


def test_files_that_are_no_books(folder):
    (folder / "test" / "31.txt").write_bytes(b" \n")
    with pytest.raises(BadData, match=r"test/31\.txt is an empty book \(2 bytes\)"):
        part(folder).prepare()
    (folder / "test" / "notes.txt").write_bytes(b"x")
    with pytest.raises(BadData, match=r"notes\.txt is no book, .* ID\.txt"):
        part(folder).prepare()
    for file in (folder / "test").iterdir():
        file.unlink()
    with pytest.raises(BadData, match="contains no books"):
        part(folder).prepare()
    shutil.rmtree(folder / "test")
    with pytest.raises(
        NotPrepared, match=r"not have the folders train/, validation/, test/.*28,602 books"
    ):
        part(folder).prepare()
    with pytest.raises(
        NotPrepared, match=r"downloads/pg19 is missing; download train/.*Apache-2\.0"
    ):
        PG19().prepare()


def test_a_whole_corpus_has_the_published_books_and_words(folder, monkeypatch):
    with pytest.raises(BadData, match=r"train split has 2 books with 12 words; wanted 28,602"):
        part(folder, partial=False).prepare()
    books = {"train": 2, "validation": 1, "test": 2}
    monkeypatch.setattr(pg19_files, "BOOKS", books)
    words = {"train": 12, "validation": 3, "test": 1000}
    monkeypatch.setattr(pg19_files, "WORDS", words)
    with pytest.raises(
        BadData, match=r"test split has 2 books with 4 words; wanted 2 books with 1,000"
    ):
        part(folder, partial=False).prepare()
    many = b"a few words more \n" * 250
    (folder / "test" / "31.txt").write_bytes(many)
    task = part(folder, partial=False)
    task.prepare()
    assert task.store().about["words"]["test"] == 1000


def test_bad_options():
    with pytest.raises(ValueError, match="reads no files"):
        PG19(source=PG19Source.sample, path="x")
    with pytest.raises(ValueError, match=r"must be above 257, .* got 257"):
        _ = PG19(source=PG19Source.sample, subword_vocabulary=257).spec


def test_tokens_are_counted_from_the_beginning_of_their_book(folder):
    task = part(folder, length=1000)
    task.prepare()
    (batch,) = task.batches("test", batch_size=1, seed=0)
    first, second = (len(book) for book in rows(task, "test"))
    assert batch.document_position.tolist() == [[*range(1, first), *range(second)]]


def test_within_documents_a_token_is_numbered_by_its_book(folder):
    task = part(folder, length=1000, within_documents=True)
    task.prepare()
    assert (task.spec.masks, task.spec.regime) == (
        {"document"},
        "non-overlapping, within documents",
    )
    (batch,) = task.batches("test", batch_size=1, seed=0)
    first, second = (len(book) for book in rows(task, "test"))
    # the last token of all is read by nothing
    assert batch.document.tolist() == [[1] * first + [2] * (second - 1)]
    trained = next(
        part(folder, length=8, within_documents=True).batches("train", batch_size=2, seed=0)
    )
    assert trained.document.shape == trained.target.shape
    assert trained.document_position is None
    with pytest.raises(ValueError, match="mixes documents"):
        part(folder, length=8, regime="memory", memory=8, within_documents=True)
