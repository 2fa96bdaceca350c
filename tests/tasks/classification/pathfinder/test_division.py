"""The archive as it is unpacked, and how published code divides its pictures."""

import hashlib
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from lra.tasks.classification.listops.task import ListOps, ListOpsSource
from lra.tasks.classification.pathfinder.division import Division, divide_pictures
from lra.tasks.classification.pathfinder.files import entries
from lra.tasks.classification.pathfinder.task import Pathfinder, PathfinderSource
from lra.tasks.classification.retrieval import Retrieval
from lra.tasks.errors import BadData, NotPrepared
from lra.tasks.task import SPLITS

HARD = "curv_contour_length_14"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LRA_DATA", str(tmp_path / "data"))


def pictures(folder, side=32, shift=0):
    """Write 40 pictures; each one's level is its place in the list."""
    (folder / "metadata").mkdir(parents=True)
    for part in (0, 10):
        (folder / "imgs" / str(part)).mkdir(parents=True)
        lines = []
        for number in range(20):
            level = 2 * part + number + shift
            file = folder / "imgs" / str(part) / f"sample_{number}.png"
            Image.fromarray(np.full((side, side), level, np.uint8)).save(file)
            lines.append(f"imgs/{part} sample_{number}.png {number} {number % 2} 1.8 14 4 5 1 1 1")
        (folder / "metadata" / f"{part}.npy").write_text("\n".join(lines) + "\n")
    return folder


def task(path, **options):
    return Pathfinder(source=PathfinderSource.files, path=str(path), partial=True, **options)


def levels(made, split):
    return made.split(split).tokens.reshape(len(made.split(split).targets), -1)[:, 0].tolist()


def test_s4_splits_as_torch_does(tmp_path):
    made = task(pictures(tmp_path / HARD), split=Division.s4)
    made.prepare()
    wanted = torch.utils.data.random_split(
        range(40), [32, 4, 4], generator=torch.Generator().manual_seed(42)
    )
    assert [levels(made, split) for split in SPLITS] == [list(part) for part in wanted]


def test_tfds_orders_by_hash_and_cuts_before_it_leaves_empty_pictures_out(tmp_path):
    folder = pictures(tmp_path / HARD)
    names = [f"imgs/{part}_sample_{i}.png_{i + 1}" for part in (0, 10) for i in range(20)]
    order = sorted(range(40), key=lambda i: hashlib.md5(b"hard" + names[i].encode()).hexdigest())
    (folder / "imgs/0/sample_5.png").write_bytes(b"")
    made = task(folder, split=Division.tfds)
    made.prepare()
    cut = order[:32], order[32:36], order[36:]
    assert [levels(made, split) for split in SPLITS] == [[i for i in p if i != 5] for p in cut]


def test_divisions_are_other_data_and_the_default_keeps_its_hash(tmp_path):
    folder = pictures(tmp_path / HARD)
    hashes = {task(folder, split=split).spec.data_hash for split in Division}
    assert len(hashes) == 3
    assert task(folder).spec.data_hash == task(folder, split=Division.seeded).spec.data_hash


def test_a_division_of_files_alone(tmp_path):
    with pytest.raises(ValueError, match=r"task\.split=s4 needs task\.source=files"):
        Pathfinder(split=Division.s4)
    folder = pictures(tmp_path / HARD)
    with pytest.raises(ValueError, match="got source=files, data_seed=1"):
        task(folder, split=Division.tfds, data_seed=1)
    other = task(pictures(tmp_path / "mine"), split=Division.tfds)
    with pytest.raises(BadData, match="got mine; wanted one of curv_baseline"):
        other.prepare()


def test_too_few_pictures_for_three_splits(tmp_path):
    listed = entries(pictures(tmp_path / HARD), partial=True)[:4]
    for division in Division:
        with pytest.raises(BadData, match="4 pictures are too few"):
            divide_pictures(listed, division, folder=HARD, seed=0)


def test_the_unpacked_archive_has_each_task_in_its_place(tmp_path):
    root = tmp_path / "lra_release"
    folder = pictures(root / "pathfinder64" / HARD, side=64)
    made = task(root, side=64)
    assert made.path == folder
    assert made.spec.source == f"files: pathfinder64/{HARD} (a part)"
    assert task(tmp_path, side=64).path == folder
    with pytest.raises(NotPrepared, match="or to the unpacked archive, from https"):
        task(root).prepare()  # it has no pictures of 32 pixels
    with pytest.raises(NotPrepared, match=r"new_aan_pairs\.train\.tsv is missing"):
        Retrieval(path=str(root)).prepare()
    trees = root / "listops-1000"
    trees.mkdir()
    for name in ("train", "val", "test"):
        (trees / f"basic_{name}.tsv").write_text("Source\tTarget\n( ( [MAX 2 ) ] )\t2\n")
    lists = ListOps(source=ListOpsSource.tsv, path=str(root), partial=True)
    lists.prepare()
    assert lists.example("test", 0)[1] == 2


def test_both_copies_of_path_x_are_found_and_told_apart(tmp_path):
    root = tmp_path / "lra_release"
    outer = pictures(root / "pathfinder128" / HARD, side=128)
    made = task(root, side=128)
    assert made.spec.source == f"files: pathfinder128/{HARD} (a part)"
    inner = pictures(root / "lra_release" / "pathfinder128" / HARD, side=128, shift=1)
    with pytest.raises(
        BadData, match=r"contains the folder pathfinder128.*2 times: .*set task.path to one"
    ):
        task(root, side=128)
    nested = task(inner, side=128)
    assert nested.spec.source == f"files: lra_release/pathfinder128/{HARD} (a part)"
    assert nested.spec.data_hash != task(outer, side=128).spec.data_hash
    shutil.rmtree(outer)
    assert task(root, side=128).spec.data_hash == nested.spec.data_hash
