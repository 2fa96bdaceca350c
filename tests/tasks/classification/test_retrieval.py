import bz2
import gzip
import lzma

import pytest
import torch

from lra.tasks.classification import pairs
from lra.tasks.classification.retrieval import Retrieval, RetrievalSource
from lra.tasks.errors import BadData, NotPrepared

LINES = [
    b'1.0\tP1\tP2\tA "quoted text\tthe other',
    b"0.0\tP3\tP4\tnot valid \xff\xfe utf-8\tx",
    b"1\tP5\tP6\t\"\"\tsecond 'text'",
    b"0\tP7\tP8\tshort\t" + b"long " * 3000,
]


def write(folder, lines=LINES, packer=bytes, ending=""):
    for name in pairs.FILES.values():
        (folder / f"{name}{ending}").write_bytes(packer(b"\n".join(lines) + b"\n"))
    return folder


def test_quotes_are_text_and_bytes_stay(tmp_path):
    task = Retrieval(path=str(write(tmp_path)), partial=True)
    task.prepare()
    (first, second), target = task.example("test", 0)
    assert (first.tobytes(), second.tobytes(), target) == (b'A "quoted text', b"the other", 1)
    (first, _), target = task.example("test", 1)
    assert (first.tobytes(), target) == (b"not valid \xff\xfe utf-8", 0)
    assert len(task.split("train").targets) == 4
    assert "one cites the other" in task.describe("test", 0)


def test_a_batch_holds_both_towers(tmp_path):
    task = Retrieval(path=str(write(tmp_path)), partial=True, max_length=4000)
    task.prepare()
    (batch,) = task.batches("test", batch_size=4, seed=0)
    assert batch.tokens.shape == (4, 2, 4000)
    assert batch.keep.shape == batch.tokens.shape
    place = batch.index.tolist().index(3)
    assert batch.keep[place].sum(-1).tolist() == [5, 4000]
    assert bytes((batch.tokens[place, 0, :5] - 1).tolist()) == b"short"
    assert torch.equal(batch.keep, batch.tokens != 0)
    stored = task.split("test")
    assert stored.parts == 2
    assert stored.lengths.tolist() == [14, 18, 13, 10_000]


@pytest.mark.parametrize(
    ("packer", "ending"), [(gzip.compress, ".gz"), (lzma.compress, ".xz"), (bz2.compress, ".bz2")]
)
def test_packed_files_are_read(tmp_path, packer, ending):
    task = Retrieval(path=str(write(tmp_path, packer=packer, ending=ending)), partial=True)
    task.prepare()
    assert task.split("test").targets.tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"1.0\ta\tb\ttext", "line 2: the line has 4 columns; wanted 5"),
        (b"1.0\ta\tb\ttext\twith\ttab", "line 2: the line has 6 columns"),
        (b"2\ta\tb\tx\ty", "line 2: the label is b'2'"),
        (b"1.0\ta\tb\t\ty", "line 2: text1 is empty"),
        (b"", "line 2: the line has 1 columns"),
    ],
)
def test_malformed_lines(tmp_path, line, message):
    task = Retrieval(path=str(write(tmp_path, [LINES[0], line])), partial=True)
    with pytest.raises(BadData, match=message):
        task.prepare()
    assert not task.folder.exists()


def test_truncated_and_empty_files(tmp_path):
    write(tmp_path, packer=lambda c: lzma.compress(c)[:-20], ending=".xz")
    with pytest.raises(BadData, match="truncated"):
        Retrieval(path=str(tmp_path)).prepare()
    for path in tmp_path.glob("*.xz"):
        path.unlink()
    for name in pairs.FILES.values():
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(BadData, match="contains no pair"):
        Retrieval(path=str(tmp_path)).prepare()


def test_missing_files_say_what_to_fetch(tmp_path):
    with pytest.raises(NotPrepared, match=r"lra_release.gz.*147,086 rows.*source=sample"):
        Retrieval(path=str(tmp_path)).prepare()
    with pytest.raises(NotPrepared, match="tsv_data"):
        Retrieval().prepare()


def test_bad_options():
    with pytest.raises(ValueError, match="max_length=10001"):
        Retrieval(max_length=10_001)
    with pytest.raises(ValueError, match="reads no files"):
        Retrieval(source=RetrievalSource.sample, path="x")


def test_lines_may_end_as_on_windows(tmp_path):
    task = Retrieval(path=str(write(tmp_path, [line + b"\r" for line in LINES])), partial=True)
    task.prepare()
    (_, second), _ = task.example("test", 0)
    assert second.tobytes() == b"the other"
