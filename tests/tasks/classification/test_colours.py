"""Colours of CIFAR-10, and the orders in which pixels are read."""

import numpy as np
import pytest
import torch

from lra.tasks.classification import images
from lra.tasks.classification.gray import Encoding
from lra.tasks.classification.pixels import Colour, Dataset, Pixels, PixelSource
from lra.tasks.classification.scans import Scan, Shuffle, scan_order
from lra.tasks.errors import BadData

RGB = {"colour": Colour.rgb, "encoding": Encoding.scalars}


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """A folder of binary batches, as the public archive has them: 30 pictures of noise."""
    monkeypatch.setenv("LRA_DATA", str(tmp_path / "data"))
    random = np.random.default_rng(0)
    folder = tmp_path / "cifar"
    folder.mkdir()
    for name, number in (("data_batch_1.bin", 20), ("test_batch.bin", 10)):
        rows = random.integers(0, 256, (number, 1 + 3 * 32 * 32), dtype=np.uint8)
        rows[:, 0] = np.arange(number) % 10
        rows.tofile(folder / name)
    return folder


def read(archive, **options):
    task = Pixels(path=str(archive), partial=True, **options)
    task.prepare()
    return task


def planes(archive, name):
    """Red, green and blue of each pixel, [n, 32, 32, 3], straight from the file."""
    rows = np.fromfile(archive / name, np.uint8).reshape(-1, 3073)
    return np.stack([rows[:, 1 + 1024 * c :][:, :1024] for c in range(3)], -1)


def test_a_pixel_has_three_normalised_channels(archive):
    task = read(archive, **RGB)
    spec = task.spec
    assert (spec.channels, spec.max_length, spec.vocabulary) == (3, 1024, 0)
    assert spec.source == "files: cifar (a part), rgb"
    (batch,) = task.batches("test", batch_size=10, seed=0)
    assert batch.tokens.shape == (10, 1, 1024, 3)
    levels = torch.from_numpy(planes(archive, "test_batch.bin")).double() / 255
    mean, deviation = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.247, 0.243, 0.261])
    wanted = ((levels - mean) / deviation)[batch.index][:, None]
    torch.testing.assert_close(batch.tokens, wanted.float())
    assert np.array_equal(
        task.stored(batch), planes(archive, "test_batch.bin")[batch.index][:, None]
    )


def test_symbols_are_the_bytes_of_a_pixel_in_turn(archive):
    task = read(archive, colour=Colour.rgb)
    (batch,) = task.batches("test", batch_size=10, seed=0)
    assert (task.spec.max_length, task.spec.channels, batch.tokens.shape) == (
        3072, 1, (10, 1, 3072),
    )  # fmt: skip
    wanted = planes(archive, "test_batch.bin").reshape(10, -1)[batch.index]
    assert np.array_equal(batch.tokens[:, 0].numpy() - 1, wanted)
    assert task.folder == read(archive, **RGB).folder


def test_validation_is_drawn_from_train(archive):
    task = read(archive, **RGB)
    assert (task.examples("train"), task.examples("validation")) == (18, 2)
    rows = planes(archive, "data_batch_1.bin").reshape(20, -1)
    used = [
        [int((rows == row).all(1).argmax()) for row in task.split(split).rows(np.arange(number))]
        for split, number in (("train", 18), ("validation", 2))
    ]
    assert sorted(used[0] + used[1]) == list(range(20))
    assert used[1] != [18, 19]  # the gray task takes the last ones
    gray = read(archive)
    assert gray.spec.source == "files: cifar (a part)"
    assert gray.folder != task.folder


def test_colours_are_shown_as_gray_pictures(archive):
    task = read(archive, **RGB, scan=Scan.hilbert)
    (row,), _ = task.example("test", 3)
    wanted = images.gray(planes(archive, "test_batch.bin").reshape(10, 32, 32, 3)[3:4])[0]
    assert np.array_equal(task.levels(row), wanted)


def test_a_cut_picture_has_its_first_pixels(archive):
    task = read(archive, **RGB, max_length=7)
    (batch,) = task.batches("test", batch_size=10, seed=0)
    whole = next(read(archive, **RGB).batches("test", batch_size=10, seed=0))
    torch.testing.assert_close(batch.tokens, whole.tokens[:, :, :7])


@pytest.mark.parametrize("side", [1, 2, 8, 32])
@pytest.mark.parametrize("scan", Scan)
def test_a_scan_reads_each_pixel_once(scan, side):
    assert sorted(scan_order(scan, side).tolist()) == list(range(side**2))


@pytest.mark.parametrize("scan", [Scan.snake, Scan.hilbert])
def test_snake_and_hilbert_step_to_neighbours(scan):
    row, column = np.divmod(scan_order(scan, 16), 16)
    assert (np.abs(np.diff(row)) + np.abs(np.diff(column)) == 1).all()


def test_scans_are_those_of_the_docstring():
    place = np.empty(16, int)
    place[scan_order(Scan.hilbert, 4)] = np.arange(16)
    assert place.tolist() == [0, 3, 4, 5, 1, 2, 7, 6, 14, 13, 8, 9, 15, 12, 11, 10]
    assert scan_order(Scan.columns, 2).tolist() == [0, 2, 1, 3]
    assert scan_order(Scan.snake, 2).tolist() == [0, 1, 3, 2]
    for number, side in ((16, 4), (784, 28)):
        digits = (number - 1).bit_length()
        reversed_bits = [int(f"{i:0{digits}b}"[::-1], 2) for i in range(2**digits)]
        wanted = [i for i in reversed_bits if i < number]
        assert scan_order(Scan.bit_reversal, side).tolist() == wanted


def test_hilbert_within_a_quarter_before_the_next():
    row, column = np.divmod(scan_order(Scan.hilbert, 8), 8)
    quarters = (2 * (row // 4) + column // 4).reshape(4, 16)
    assert (quarters == quarters[:, :1]).all()


@pytest.mark.parametrize("scan", [Scan.columns, Scan.snake, Scan.bit_reversal])
def test_pixels_come_in_the_order_of_the_scan(scan):
    scanned, plain = (
        Pixels(source=PixelSource.sample, dataset=Dataset.mnist, **options)
        for options in ({"scan": scan}, {})
    )
    scanned.prepare(), plain.prepare()
    ours, theirs = (next(t.batches("test", batch_size=4, seed=0)) for t in (scanned, plain))
    order = torch.from_numpy(scan_order(scan, 28))
    assert torch.equal(ours.tokens, theirs.tokens[..., order])
    assert scanned.spec.source == f"sample (synthetic), scan={scan}"
    assert scanned.describe("test", 3) == plain.describe("test", 3)


@pytest.mark.parametrize("colour", Colour)
def test_rows_and_columns_are_channels_of_one_token(archive, colour):
    options = {"colour": colour, "encoding": Encoding.scalars}
    both, *alone = (
        read(archive, **options, scan=scan)
        for scan in (Scan.rows_and_columns, Scan.rows, Scan.columns)
    )
    channels = 3 if colour is Colour.rgb else 1
    assert (both.spec.channels, both.spec.max_length) == (2 * channels, 1024)
    assert "scan=rows_and_columns" in both.spec.source
    ours, *theirs = (next(t.batches("test", batch_size=10, seed=0)) for t in (both, *alone))
    wanted = torch.cat([b.tokens.reshape(10, 1, 1024, channels) for b in theirs], dim=-1)
    assert torch.equal(ours.tokens, wanted)
    assert both.describe("test", 3) == alone[0].describe("test", 3)
    cut = read(archive, **options, scan=Scan.rows_and_columns, max_length=33)
    (batch,) = cut.batches("test", batch_size=10, seed=0)
    assert torch.equal(batch.tokens, wanted[:, :, :33])
    assert not both.shows_whole_pictures
    assert [b.name for b in both.baselines("test")] == [b.name for b in alone[1].baselines("test")]


def test_the_permutation_of_permuted_mnist_may_be_bit_reversal():
    options = {"source": PixelSource.sample, "dataset": Dataset.mnist}
    permuted = Pixels(**options, permuted=True, permutation=Shuffle.bit_reversal)
    assert permuted.spec.name == "permuted_mnist"
    assert permuted.spec.source == "sample (synthetic), permutation=bit_reversal"
    (order,) = permuted.orders()
    assert order.tolist() == scan_order(Scan.bit_reversal, 28).tolist()
    random = Pixels(**options, permuted=True)
    assert random.spec.source == "sample (synthetic)"  # as in rows of earlier versions
    assert random.folder != permuted.folder


def test_gray_pictures_have_no_colours(archive, tmp_path):
    folder = tmp_path / "gray"
    folder.mkdir()
    (folder / "cifar10_gray_train.npz").write_bytes(b"")
    with pytest.raises(BadData, match=r"has only gray pictures, but task\.colour=rgb needs"):
        images.read_cifar(folder, rgb=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"colour": Colour.rgb, "dataset": Dataset.mnist}, r"needs task\.dataset=cifar10.*mnist"),
        ({"colour": Colour.rgb, "black_is_padding": True}, "got dataset=cifar10, black_is_padding"),
        ({**RGB, "max_length": 1025}, "wanted 1 to 1024, the tokens of an image"),
        ({"colour": Colour.rgb, "max_length": 3073}, "wanted 1 to 3072"),
        ({"permuted": True, "scan": Scan.snake}, r"permuted=true replaces the scan.*scan=snake"),
        ({"permutation": Shuffle.bit_reversal}, r"needs task\.permuted=true"),
        (
            {"permuted": True, "permutation": Shuffle.bit_reversal, "permutation_seed": 3},
            "got permuted=true, permutation_seed=3",
        ),
        ({"scan": Scan.rows_and_columns}, r"two pixels into a token: got task\.encoding=symbols"),
        ({"dataset": Dataset.mnist, "scan": Scan.hilbert}, "a power of two: got 28 pixels"),
    ],
)
def test_options_without_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Pixels(**options)
