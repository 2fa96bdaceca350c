"""A part of a data set is refused, or named in every row; an empty one is refused always."""

import numpy as np
import pytest
from PIL import Image

from lra.tasks.classification import pairs
from lra.tasks.classification.listops import task as listops, text as listops_text
from lra.tasks.classification.pathfinder import files as pathfinder_files, task as pathfinder
from lra.tasks.classification.pixels import Dataset, Pixels
from lra.tasks.classification.retrieval import Retrieval
from lra.tasks.classification.text import Text
from lra.tasks.data.published_data import MARK, check_whole
from lra.tasks.errors import BadData, NotPrepared
from lra.tasks.language.characters import CharacterCorpus, Characters
from lra.tasks.language.pg19 import PG19
from lra.tasks.language.wikitext import WikiText
from lra.tasks.proteins.task import Proteins
from tests.tasks.classification.test_images import colours, idx, pack, rows

BATCHES = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]


def cifar(folder, names):
    files = {name: rows(colours(4, i), [i % 10] * 4) for i, name in enumerate(names)}
    return pack(folder / "cifar.tar.gz", files)


def mnist(folder):
    for prefix, number in (("train", 6), ("t10k", 3)):
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(idx(np.zeros((number, 28, 28)), 2051))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(np.arange(number), 2049))
    return folder


def imdb(folder):
    for part in ("train", "test"):
        for sentiment, number in (("pos", 9), ("neg", 2)):
            (folder / part / sentiment).mkdir(parents=True)
            for i in range(12):
                text = f"{part} {sentiment} {i}"
                (folder / part / sentiment / f"{i}_{number}.txt").write_text(text)
    return folder


def aan(folder):
    for name in pairs.FILES.values():
        (folder / name).write_text("".join(f"{i % 2}\ta\tb\tone {i}\ttwo\n" for i in range(9)))
    return folder


def books(folder):
    for number, split in enumerate(("train", "validation", "test")):
        (folder / split).mkdir()
        (folder / split / f"{number}.txt").write_text("a short book of few words\n" * 300)
    return folder


def letters(folder):
    (folder / "part").write_bytes(b"a prefix of the text " * 200)
    return folder / "part"


def words(folder):
    for name in ("train", "valid", "test"):
        (folder / f"wiki.{name}.tokens").write_text(" = A = \n some words here \n")
    return folder


def fasta(folder):
    made = np.random.default_rng(0).integers(0, 20, (200, 30))
    texts = ("".join("ACDEFGHIKLMNPQRSTVWY"[i] for i in row) for row in made)
    path = folder / "a.fasta"
    path.write_text("".join(f">P{i}\n{text}\n" for i, text in enumerate(texts)))
    return path


def trees(folder):
    for name in listops_text.FILES.values():
        (folder / name).write_text("Source\tTarget\n( ( ( [MAX 2 ) 9 ) ] )\t9\n")
    return folder


def drawn(folder, empty=0):
    """Write a set of 30 pictures, the first of them empty."""
    (folder / "imgs" / "0").mkdir(parents=True)
    (folder / "metadata").mkdir()
    lines = [f"imgs/0 sample_{i}.png {i} {i % 2} 1.0 14 4 2 0.5 1 1\n" for i in range(30)]
    (folder / "metadata" / "0.npy").write_text("".join(lines))
    for i in range(30):
        path = folder / "imgs" / "0" / f"sample_{i}.png"
        Image.fromarray(np.full((32, 32), i, np.uint8)).save(path)
        if i < empty:
            path.write_bytes(b"")
    return folder


PARTS = {
    "one batch of CIFAR": lambda f, **o: Pixels(path=str(cifar(f, BATCHES[::5])), **o),
    "short batches of CIFAR": lambda f, **o: Pixels(path=str(cifar(f, BATCHES)), **o),
    "mnist": lambda f, **o: Pixels(dataset=Dataset.mnist, path=str(mnist(f)), **o),
    "imdb": lambda f, **o: Text(path=str(imdb(f)), **o),
    "aan": lambda f, **o: Retrieval(path=str(aan(f)), **o),
    "pg19": lambda f, **o: PG19(path=str(books(f)), subword_vocabulary=270, **o),
    "enwik8": lambda f, **o: Characters(path=str(letters(f)), **o),
    "text8": lambda f, **o: Characters(corpus=CharacterCorpus.text8, path=str(letters(f)), **o),
    "wikitext": lambda f, **o: WikiText(path=str(words(f)), vocabulary_size=7, **o),
    "proteins": lambda f, **o: Proteins(path=str(fasta(f)), **o),
    "listops": lambda f, **o: listops.ListOps(
        source=listops.ListOpsSource.tsv, path=str(trees(f)), **o
    ),
    "pathfinder": lambda f, **o: pathfinder.Pathfinder(
        source=pathfinder.PathfinderSource.files, path=str(drawn(f)), **o
    ),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_is_refused_with_both_numbers_and_the_way_out(tmp_path, name):
    task = PARTS[name](tmp_path)
    with pytest.raises(BadData, match=r"\d.*wanted.*\d\d.*task\.partial=true"):
        task.prepare()
    assert not task.folder.exists()


@pytest.mark.parametrize("name", PARTS)
def test_a_part_that_is_named_stands_in_every_row(tmp_path, name):
    task = PARTS[name](tmp_path, partial=True)
    task.prepare()
    assert task.spec.source.endswith(MARK)
    assert task.store().about["source"] == task.spec.source
    (tmp_path / "again").mkdir()
    assert PARTS[name](tmp_path / "again").spec.data_hash != task.spec.data_hash


@pytest.mark.parametrize("given", [".", "..", "a/.."])
def test_a_folder_without_a_name_of_its_own_is_named(tmp_path, monkeypatch, given):
    (tmp_path / "mine/a").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "mine/a" if given == ".." else tmp_path / "mine")
    assert Text(path=given).spec.source == "files: mine"


def empty(folder):
    """Leave every file in its place, with nothing in it."""
    for file in folder.rglob("*"):
        if file.is_file() and file.suffix != ".gz":
            file.write_bytes(b"")


@pytest.mark.parametrize("name", [name for name in PARTS if "CIFAR" not in name])
def test_an_empty_part_is_refused(tmp_path, name):
    PARTS[name](tmp_path)
    empty(tmp_path)
    made = {
        "mnist": lambda: Pixels(dataset=Dataset.mnist, path=str(tmp_path), partial=True),
        "imdb": lambda: Text(path=str(tmp_path), partial=True),
        "aan": lambda: Retrieval(path=str(tmp_path), partial=True),
        "pg19": lambda: PG19(path=str(tmp_path), subword_vocabulary=270, partial=True),
        "enwik8": lambda: Characters(path=str(tmp_path / "part"), partial=True),
        "text8": lambda: Characters(
            corpus=CharacterCorpus.text8, path=str(tmp_path / "part"), partial=True
        ),
        "wikitext": lambda: WikiText(path=str(tmp_path), vocabulary_size=7, partial=True),
        "proteins": lambda: Proteins(path=str(tmp_path / "a.fasta"), partial=True),
        "listops": lambda: listops.ListOps(
            source=listops.ListOpsSource.tsv, path=str(tmp_path), partial=True
        ),
        "pathfinder": lambda: pathfinder.Pathfinder(
            source=pathfinder.PathfinderSource.files, path=str(tmp_path), partial=True
        ),
    }  # fmt: skip
    with pytest.raises((BadData, NotPrepared)):
        made[name]().prepare()


def test_an_empty_split_is_refused_whatever_is_said():
    with pytest.raises(BadData, match="test has 0 of the 5 published images"):
        check_whole({"train": 5}, {"train": 5, "test": 5}, where="x", of="images", partial=True)


@pytest.mark.parametrize("task", [Text, Pixels, Characters])
def test_public_data_are_no_part(task):
    with pytest.raises(ValueError, match=r"remove task\.partial"):
        task(partial=True)


def test_keys_of_whole_data_stay():
    """Whole data have the hashes that they had before parts were named."""
    assert Text().spec.data_hash == "edbbbb5433e73b13"
    assert Pixels().spec.data_hash == "c041ce4fa7aac3a6"
    assert Pixels(dataset=Dataset.mnist).spec.data_hash == "9cc2604f845c8e8c"


def test_a_set_of_pictures_has_one_empty_picture_at_most(tmp_path, monkeypatch):
    def whole(folder, *, partial):
        listed = pathfinder_files.entries(folder, partial=partial)
        return sum(not entry.empty for entry in listed)

    monkeypatch.setattr(pathfinder_files, "PUBLISHED", 30)
    assert whole(drawn(tmp_path / "one", 1), partial=False) == 29
    two = drawn(tmp_path / "two", 2)
    with pytest.raises(BadData, match="2 pictures are empty files"):
        whole(two, partial=False)
    assert whole(two, partial=True) == 28


def test_the_official_number_of_trees_needs_no_word(tmp_path, monkeypatch):
    monkeypatch.setattr(listops, "OFFICIAL", dict.fromkeys(listops_text.FILES, 1))
    task = listops.ListOps(source=listops.ListOpsSource.tsv, path=str(trees(tmp_path)))
    task.prepare()
    assert task.spec.source == "tsv"


@pytest.mark.parametrize("split", pairs.FILES)
def test_pairs_that_are_cut_in_the_last_text(tmp_path, split):
    file = aan(tmp_path) / pairs.FILES[split]
    file.write_bytes(file.read_bytes()[:-2])
    with pytest.raises(
        BadData, match="line 9: the last line has no line end, so it may be truncated"
    ):
        Retrieval(path=str(tmp_path), partial=True).prepare()
