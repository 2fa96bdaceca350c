"""Data are known by their content: a change of any kind gives another identity."""

import json
import os
import random
import shutil
import time

import numpy as np
import pytest

from lra.tasks.classification.pixels import Pixels
from lra.tasks.classification.reviews import sample_reviews
from lra.tasks.classification.table import TableTask
from lra.tasks.classification.text import Text, TextSource
from lra.tasks.data import sources
from lra.tasks.data.sources import data_root, folder_identity, remembered_sha256
from lra.tasks.errors import BadData
from tests.fuzz import cases

TICK_S = 0.02
"""Longer than the clock of a file system stands still."""


@pytest.fixture(autouse=True)
def remember_at_once(monkeypatch):
    monkeypatch.setattr(sources, "SETTLED_S", -1)


@pytest.fixture
def computed(monkeypatch):
    """Which files were hashed."""
    found, real = [], sources.sha256
    monkeypatch.setattr(sources, "sha256", lambda path: found.append(path.name) or real(path))
    return found


def rewritten(path, content):
    """Put other content into the file itself, under its old date."""
    date = path.stat()
    time.sleep(TICK_S)
    path.write_bytes(content)
    os.utime(path, ns=(date.st_atime_ns, date.st_mtime_ns))


def replaced(path, content):
    """Put another file in its place, of the same date."""
    other = path.with_name("other")
    other.write_bytes(content)
    date = path.stat()
    os.utime(other, ns=(date.st_atime_ns, date.st_mtime_ns))
    other.replace(path)


CHANGES = (rewritten, replaced)


def flipped(content, source):
    """Return bytes of the same number, one of them another."""
    place = source.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_is_hashed_again_where_it_changed(change, tmp_path, computed):
    path = tmp_path / "file"
    path.write_bytes(b"one")
    first = remembered_sha256(path)
    assert remembered_sha256(path) == first
    assert computed == ["file"]
    change(path, b"two")
    assert remembered_sha256(path) != first
    assert len(list((data_root() / "hashes").iterdir())) == 1


def test_what_changed_just_now_is_not_remembered(tmp_path, monkeypatch, computed):
    monkeypatch.setattr(sources, "SETTLED_S", 60)
    (tmp_path / "file").write_bytes(b"one")
    assert remembered_sha256(tmp_path / "file") == remembered_sha256(tmp_path / "file")
    assert len(computed) == 2


@pytest.mark.parametrize("damage", ["", "[]", "{}", "null", '{"state": 1}', "\0"])
def test_a_damaged_note_is_made_anew(tmp_path, damage):
    (tmp_path / "file").write_bytes(b"one")
    known = remembered_sha256(tmp_path / "file")
    (note,) = (data_root() / "hashes").iterdir()
    note.write_text(damage)
    assert remembered_sha256(tmp_path / "file") == known
    assert json.loads(note.read_text())["sha256"] == known


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch):
    path, real = tmp_path / "file", sources.sha256
    path.write_bytes(b"one")

    def slow(path):
        found = real(path)
        path.write_bytes(b"other")
        return found

    monkeypatch.setattr(sources, "sha256", slow)
    with pytest.raises(BadData, match="changed while lra was reading it; rerun the same command"):
        remembered_sha256(path)


def some_files(folder, source):
    """Write files into folders of some depth; return them."""
    files = []
    for number in range(source.randint(2, 9)):
        path = folder / "/".join(["part"] * source.randint(0, 3)) / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(source.randbytes(source.randint(1, 40)))
        files.append(path)
    return files


def edited(files, source):
    path = source.choice(files)
    source.choice(CHANGES)(path, flipped(path.read_bytes(), source))


def exchanged(files, source):
    first, second = source.sample(files, 2)
    a, b = first.read_bytes(), second.read_bytes()
    first.write_bytes(b + b"1")
    second.write_bytes(a)


def renamed(files, source):
    path = source.choice(files)
    path.rename(path.with_name(f"new-{path.name}"))


def added(files, source):
    source.choice(files).with_name("added").write_bytes(b"")


def removed(files, source):
    source.choice(files).unlink()


@pytest.mark.fuzz
@pytest.mark.parametrize("change", [edited, exchanged, renamed, added, removed])
@pytest.mark.parametrize("seed", range(cases(2)))
def test_every_change_gives_a_folder_another_identity(change, seed, tmp_path, computed):
    source = random.Random(f"{change.__name__} {seed}")
    folder = tmp_path / "folder"
    files = some_files(folder, source)
    first = folder_identity(folder)
    assert folder_identity(folder) == first
    assert sorted(computed) == sorted(path.name for path in files)
    assert len(list((data_root() / "hashes").iterdir())) == 1
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(folder, elsewhere)
    assert folder_identity(elsewhere) == first
    change(files, source)
    assert folder_identity(folder) != first
    assert folder_identity(elsewhere) == first


def test_linked_folders_are_entered_once(tmp_path):
    folder, other = tmp_path / "folder", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    (other / "a").write_bytes(b"a")
    (folder / "linked").symlink_to(other)
    (other / "back").symlink_to(folder)
    (folder / "nowhere").symlink_to(tmp_path / "missing")
    first = folder_identity(folder)
    rewritten(other / "a", b"b")
    assert folder_identity(folder) != first


def reviews(folder):
    for part, labelled in sample_reviews().items():
        for number, (text, label) in enumerate(labelled):
            path = folder / part / ("neg", "pos")[label] / f"{number}_5.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text)
    return folder


def pictures(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for split, number in (("train", 40), ("test", 20)):
        images = np.arange(number * 1024, dtype=np.uint32).astype(np.uint8).reshape(number, 32, 32)
        labels = (np.arange(number) % 10).astype(np.uint8)
        np.savez(folder / f"cifar10_gray_{split}.npz", images=images, labels=labels)
    return folder


def relabelled(folder):
    path = folder / "cifar10_gray_test.npz"
    with np.load(path) as npz:
        images, labels = npz["images"], npz["labels"]
    np.savez(folder / "new.npz", images=images, labels=labels[::-1])
    content = (folder / "new.npz").read_bytes()
    (folder / "new.npz").unlink()
    assert len(content) == path.stat().st_size
    return path, content


def labels(task):
    task.prepare()
    return [task.split("test").tokens.tobytes(), task.split("test").targets.tolist()]


# -- what reads files; in which ways they may change stands above ----------------------------------


def test_relabelled_pictures_are_read_anew(tmp_path):
    folder = pictures(tmp_path / "cifar")
    before = labels(Pixels(path=str(folder), partial=True))
    rewritten(*relabelled(folder))
    assert labels(Pixels(path=str(folder), partial=True))[1] == before[1][::-1]


def test_an_edited_review_is_read_anew(tmp_path):
    folder = reviews(tmp_path / "imdb")
    before = labels(Text(path=str(folder), partial=True))
    path = sorted((folder / "test/pos").iterdir())[0]
    rewritten(path, b"X" + path.read_bytes()[1:])
    after = labels(Text(path=str(folder), partial=True))
    assert sum(a != b for a, b in zip(before[0], after[0], strict=True)) == 1


def test_files_that_datasets_reads_are_read_anew(tmp_path):
    folder = tmp_path / "reviews"
    folder.mkdir()
    for part in ("train", "test"):
        rows = [{"text": f"review {i}", "label": i % 2} for i in range(40)]
        lines = "\n".join(json.dumps(row) for row in rows)
        (folder / f"{part}.jsonl").write_text(lines)
    task = {"source": TextSource.datasets, "path": str(folder), "partial": True}
    before = labels(Text(**task))
    path = folder / "test.jsonl"
    rewritten(path, path.read_bytes().replace(b"review", b"REVIEW"))
    assert labels(Text(**task))[0] == before[0].replace(b"review", b"REVIEW")


def test_a_table_is_read_anew(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("text,label\n" + "".join(f"review {i},{'ab'[i % 2]}\n" for i in range(40)))
    task = {"train": str(path), "labels": ["a", "b"]}
    TableTask(**task).prepare()
    rewritten(path, path.read_bytes().replace(b"review", b"REVIEW"))
    assert b"review" not in labels(TableTask(**task))[0]
