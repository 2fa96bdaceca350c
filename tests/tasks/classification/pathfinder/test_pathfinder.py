from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from lra.tasks.classification.pathfinder.published_pictures import draw
from lra.tasks.classification.pathfinder.styles import STYLES
from lra.tasks.classification.pathfinder.task import Pathfinder, PathfinderSource
from lra.tasks.errors import BadData, NotPrepared

SMALL = {"train_examples": 30, "validation_examples": 10, "test_examples": 10, "processes": 1}


def test_processes_do_not_change_the_data(tmp_path, monkeypatch):
    found = []
    for processes in (1, 2):
        monkeypatch.setenv("LRA_DATA", str(tmp_path / str(processes)))
        monkeypatch.setattr("lra.tasks.classification.pathfinder.task.BLOCK", 10)
        task = Pathfinder(**SMALL | {"processes": processes})
        task.prepare()
        found.append(task.split("train").tokens.tobytes())
    assert found[0] == found[1]


def test_the_task_and_its_oracle():
    task = Pathfinder(**SMALL)
    task.prepare()
    batch = next(task.batches("test", batch_size=4, seed=0))
    assert batch.tokens.shape == (4, 1, 1024)
    assert (task.spec.vocabulary, task.spec.padded) == (257, False)
    index = int(batch.index[0])
    np.testing.assert_array_equal(
        (batch.tokens[0, 0] - 1).view(32, 32).numpy(), task.picture("test", index).pixels
    )
    baselines = {baseline.name: baseline.accuracy for baseline in task.baselines("test")}
    assert baselines["path_search"] == 1.0
    assert {"disc_distance", "straightest_dashes"} <= baselines.keys()
    assert "on one path" in task.describe("test", 0) or "on two paths" in task.describe("test", 0)


def test_options_make_a_sample_smaller_but_not_larger():
    usual, less = Pathfinder(source="sample"), Pathfinder(source="sample", **SMALL)
    assert usual.spec == Pathfinder(source="sample", train_examples=160_001).spec
    assert usual.spec.sizes == {"train": 200, "validation": 50, "test": 100}
    assert less.spec.sizes == {"train": 30, "validation": 10, "test": 10}
    assert usual.spec.data_hash != Pathfinder(source="sample", data_seed=1).spec.data_hash


def test_a_canvas_adds_length_and_nothing_else():
    task, plain = Pathfinder(**SMALL, canvas=48), Pathfinder(**SMALL)
    for each in (task, plain):
        each.prepare()
    assert task.spec.max_length == 48 * 48
    wide = task.split("test").tokens.reshape(-1, 48, 48)
    np.testing.assert_array_equal(wide[:, 8:40, 8:40].reshape(-1), plain.split("test").tokens)
    assert wide.sum() == plain.split("test").tokens.sum()


def test_black_is_padding_by_name_alone():
    task = Pathfinder(**SMALL, black_is_padding=True)
    task.prepare()
    batch = next(task.batches("test", batch_size=4, seed=0))
    assert task.spec.padded
    assert torch.equal(batch.keep, batch.tokens != 0)
    assert float(batch.keep.float().mean()) < 0.6


@pytest.fixture
def archive(tmp_path):
    folder = tmp_path / "pathfinder32" / "curv_contour_length_14"
    (folder / "metadata").mkdir(parents=True)
    for batch in (10, 2):
        (folder / "imgs" / str(batch)).mkdir(parents=True)
        lines = []
        for number in range(10):
            level = batch * 10 + number
            path = folder / "imgs" / str(batch) / f"sample_{number}.png"
            Image.fromarray(np.full((32, 32), level, np.uint8)).save(path)
            lines.append(
                f"imgs/{batch} sample_{number}.png {number} {number % 2} 1.0 14 4 2 0.5 1 1"
            )
        (folder / "metadata" / f"{batch}.npy").write_text("\n".join(lines) + "\n")
    return folder


def test_the_archive_is_read_in_the_order_of_its_numbers(archive):
    from lra.tasks.classification.pathfinder.files import entries

    listed = entries(archive, partial=True)
    assert [entry.file.name for entry in listed[:2]] == ["sample_0.png", "sample_1.png"]
    assert listed[0].file.parent.name == "2"
    task = Pathfinder(source=PathfinderSource.files, path=str(archive), partial=True)
    task.prepare()
    assert [len(task.split(s).targets) for s in ("train", "validation", "test")] == [16, 2, 2]
    for split in ("train", "validation", "test"):
        data = task.split(split)
        levels = data.tokens[::1024]
        assert ((levels % 10) % 2 == data.targets).all()
    names = [baseline.name for baseline in task.baselines("test")]
    assert names[0] == "majority"
    assert names[-1] == "disc_distance"


def test_an_empty_picture_is_left_out(archive, caplog):
    (archive / "imgs" / "2" / "sample_3.png").write_bytes(b"")
    task = Pathfinder(source=PathfinderSource.files, path=str(archive), partial=True)
    task.prepare()
    assert sum(len(task.split(s).targets) for s in ("train", "validation", "test")) == 19
    assert "skips 1 empty pictures" in caplog.text


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("imgs/2/sample_3.png", b"no png", BadData, "cannot read .* as a picture"),
        ("imgs/2/sample_3.png", None, NotPrepared, "is missing, although"),
        ("metadata/2.npy", b"imgs/2 sample_0.png 0 7 x", BadData, "line 1"),
        ("metadata/2.npy", b"../.. passwd 0 1 x", BadData, "is outside"),
        ("metadata/2.npy", b"\x93NUMPY binary", BadData, "damaged or of another version"),
    ],
)
def test_damaged_archives(archive, name, content, error, message):
    path = archive / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(error, match=message):
        Pathfinder(source=PathfinderSource.files, path=str(archive), partial=True).prepare()


def test_a_picture_of_another_size(archive):
    Image.fromarray(np.zeros((64, 64), np.uint8)).save(archive / "imgs/2/sample_3.png")
    with pytest.raises(BadData, match="64 x 64 pixels; wanted 32 x 32"):
        Pathfinder(source=PathfinderSource.files, path=str(archive), partial=True).prepare()


def test_no_archive_says_what_to_fetch(tmp_path):
    with pytest.raises(NotPrepared, match="curv_contour_length_14"):
        Pathfinder(source=PathfinderSource.files, path=str(tmp_path)).prepare()


def test_impossible_pictures_end_with_a_reason(monkeypatch):
    monkeypatch.setattr("lra.tasks.classification.pathfinder.published_pictures.PICTURE_TRIES", 3)
    with pytest.raises(
        ValueError, match=r"two snakes of 200 dashes .* did not fit .*task\.contour"
    ):
        draw(replace(STYLES[32], contour=200), 0, 0)
