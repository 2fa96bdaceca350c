import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from lra.tasks.classification.pathfinder.dashes import coverage, disc, stamps
from lra.tasks.classification.pathfinder.separated import SeparatedBoard, _stamp_shape, draw, joined
from lra.tasks.classification.pathfinder.styles import STYLES, RandomNumbers
from lra.tasks.classification.pathfinder.task import Drawing, Pathfinder, PathfinderSource
from lra.tasks.errors import BadData, NotPrepared
from tests.tasks.classification.pathfinder.pathfinder_measures import digest

SMALL = {"train_examples": 30, "validation_examples": 10, "test_examples": 10, "processes": 1}
RECORDED = {
    32: (40, "b14e78aae790303162fc6c7e6169a201a28bc19415189f8760b9c2bc77e69787"),
    64: (8, "6cc1f3f0a21766c937bdd0a07df5c912bc3071c6485aca1c88c7c45f90648e6a"),
    128: (3, "7edacd0156b1bad31edca2635822827b0787ba0a077e6e486c8ef3c155ea8e7c"),
    256: (3, "82f9fb5529aef0b3e77bd29c1754680fb0f1f854f7653867fbb659b335fad7ef"),
}
"""By side: how many pictures of seed 3, and a hash of their pixels and labels, as version 1 of the
task drew them."""


def neighbours(pixel):
    y, x = pixel
    return {(y + i, x + j) for i in (-1, 0, 1) for j in (-1, 0, 1)} - {pixel}


def walk(picture):
    """Search the path with sets of pixels instead of bits."""
    width = picture.width
    drawn = {divmod(bit, width) for bit in range(width * width) if picture.lines >> bit & 1}
    begin, finish = (divmod(bit, width) for bit in picture.marks)
    seen, frontier = {begin}, {begin}
    while frontier:
        frontier = {n for pixel in frontier for n in neighbours(pixel)} & drawn - seen
        seen |= frontier
    return finish in seen


@pytest.mark.parametrize(("side", "first", "number"), [(32, 0, 12), (64, 2, 4), (128, 2, 2)])
def test_every_label_is_what_a_search_finds(side, first, number):
    style = STYLES[side]
    labels = []
    for index in range(first, first + number):
        picture = draw(style, 3, index)
        assert walk(picture) == joined(picture) == bool(picture.label)
        assert picture.pixels.shape == (side, side)
        assert picture.pixels.max() == 255
        labels.append(picture.label)
    assert len(set(labels)) == 2


def test_the_largest_side():
    picture = draw(STYLES[256], 0, 0)
    assert joined(picture) == bool(picture.label)
    assert not picture.pixels[:20].any()  # the published border of 22 pixels, but for the discs


def test_a_wrong_label_is_noticed():
    picture = draw(STYLES[32], 0, 0)
    begin, finish = picture.marks
    cut = picture._replace(lines=picture.lines & ~(1 << finish))
    assert not joined(cut)
    assert joined(picture._replace(marks=(begin, begin)))


def test_pictures_depend_on_style_seed_and_number_alone():
    one, again = draw(STYLES[32], 1, 5), draw(STYLES[32], 1, 5)
    np.testing.assert_array_equal(one.pixels, again.pixels)
    assert not np.array_equal(one.pixels, draw(STYLES[32], 1, 6).pixels)
    assert not np.array_equal(one.pixels, draw(STYLES[32], 2, 5).pixels)


def test_dashes_of_two_snakes_never_share_space():
    board = SeparatedBoard(STYLES[64], 1, RandomNumbers(0, 0))
    snake = board.seed(0, 30, 20)
    assert snake is not None
    board.take(snake)
    assert board.seed(0, 30, 20) is None
    assert board.seed(90, 31, 22) is None
    assert board.seed(0, 45, 20) is not None
    assert board.seed(0, 0, 0) is None  # the border
    assert board.seed(0, -1, 70) is None


def test_the_next_dash_turns_as_the_weights_say():
    made = stamps(_stamp_shape(STYLES[64], 1))
    straight = made.after_seed[0]
    assert sum(weight for _, weight in straight) > 0
    largest = max(straight, key=lambda pair: pair[1])[0]
    assert made.ways[largest].head == (0, 6)
    for way, weight in straight:
        down, right = made.ways[way].head
        turn = abs(math.atan2(down, right))
        assert weight == round(math.cos(min(1.8 * turn, math.pi / 2)) ** 2 * (1 << 24))
    assert all(made.ways[way].head[1] > 0 for way, _ in straight)


def test_coverage_is_an_area():
    line = coverage(6, 0.0, 1.0, (1.0, 5.0), 0.75, round_ends=False)
    assert line.sum() == pytest.approx(4 * 1.5, rel=0.05)
    assert disc(5.0).sum() == pytest.approx(math.pi * 25, rel=0.02)
    turned = coverage(6, 1.0, 0.0, (1.0, 5.0), 0.75, round_ends=False)
    np.testing.assert_allclose(turned, line.T)


def test_processes_do_not_change_the_data(tmp_path, monkeypatch):
    found = []
    for processes in (1, 2):
        monkeypatch.setenv("LRA_DATA", str(tmp_path / str(processes)))
        monkeypatch.setattr("lra.tasks.classification.pathfinder.task.BLOCK", 10)
        task = Pathfinder(**SMALL | {"processes": processes})
        task.prepare()
        found.append(task.split("train").tokens.tobytes())
    assert found[0] == found[1]


@pytest.mark.parametrize("side", RECORDED)
def test_separated_draws_the_bytes_of_version_1(side):
    number, recorded = RECORDED[side]
    assert digest(draw, STYLES[side], number) == recorded


def test_published_is_the_default_and_separated_other_data():
    default, separated = Pathfinder(**SMALL), Pathfinder(**SMALL, drawing=Drawing.separated)
    assert default.spec.version == 2
    assert default.spec.data_hash == Pathfinder(**SMALL, drawing="published").spec.data_hash
    assert default.spec.data_hash != separated.spec.data_hash
    separated.prepare()
    np.testing.assert_array_equal(
        separated.split("train").tokens[:1024].reshape(32, 32), draw(STYLES[32], 0, 0).pixels
    )


@pytest.mark.parametrize("drawing", Drawing)
def test_the_task_and_its_oracle(drawing):
    task = Pathfinder(**SMALL, drawing=drawing)
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
    assert "disc_distance" in baselines
    assert ("straightest_dashes" in baselines) == (drawing is Drawing.published)
    assert "on one path" in task.describe("test", 0) or "on two paths" in task.describe("test", 0)


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
    assert "left out 1 empty pictures" in caplog.text


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("imgs/2/sample_3.png", b"no png", BadData, "no readable picture"),
        ("imgs/2/sample_3.png", None, NotPrepared, "is missing, though"),
        ("metadata/2.npy", b"imgs/2 sample_0.png 0 7 x", BadData, "line 1"),
        ("metadata/2.npy", b"../.. passwd 0 1 x", BadData, "lies outside"),
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
    with pytest.raises(BadData, match="64 x 64 pixels, wanted 32 x 32"):
        Pathfinder(source=PathfinderSource.files, path=str(archive), partial=True).prepare()


def test_no_archive_says_what_to_fetch(tmp_path):
    with pytest.raises(NotPrepared, match="curv_contour_length_14"):
        Pathfinder(source=PathfinderSource.files, path=str(tmp_path)).prepare()


def test_impossible_pictures_end_with_a_reason(monkeypatch):
    monkeypatch.setattr("lra.tasks.classification.pathfinder.separated.PICTURE_TRIES", 3)
    with pytest.raises(ValueError, match=r"no room for two snakes of 200 dashes.*task\.contour"):
        draw(replace(STYLES[32], contour=200), 0, 0)
