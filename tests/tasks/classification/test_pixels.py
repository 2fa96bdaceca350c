import numpy as np
import pytest
import torch

from lra.tasks.classification.gray import Encoding
from lra.tasks.classification.pixels import Dataset, Pixels, PixelSource
from lra.tasks.errors import NotPrepared


def sample(**options):
    task = Pixels(source=PixelSource.sample, **options)
    task.prepare()
    return task


def first(task, split="test"):
    return next(task.batches(split, batch_size=4, seed=0))


def test_symbols_are_levels_plus_one_and_nothing_is_padded():
    task = sample()
    batch = first(task)
    assert (task.spec.vocabulary, task.spec.padded, task.spec.max_length) == (257, False, 1024)
    assert batch.tokens.shape == (4, 1, 1024)
    assert batch.keep is None
    (row,), target = task.example("test", int(batch.index[0]))
    assert (batch.tokens[0, 0] - 1).tolist() == row.tolist()
    assert int(batch.target[0]) == target


def test_scalars_are_normalised_levels():
    task, plain = sample(encoding=Encoding.scalars, mean=0.5, deviation=0.25), sample()
    assert (task.spec.vocabulary, task.spec.scalars) == (0, True)
    wanted = ((first(plain).tokens - 1) / 255 - 0.5) / 0.25
    torch.testing.assert_close(first(task).tokens, wanted.float())
    assert task.folder == plain.folder


def test_black_is_padding_by_name_alone():
    task = sample(black_is_padding=True)
    batch = first(task)
    assert (task.spec.vocabulary, task.spec.padded) == (256, True)
    assert torch.equal(batch.keep, batch.tokens != 0)
    assert not bool(batch.keep.all())
    assert torch.equal(batch.tokens + 1, first(sample()).tokens)


def test_one_permutation_for_all_images():
    task, plain = sample(permuted=True, dataset=Dataset.mnist), sample(dataset=Dataset.mnist)
    assert task.spec.name == "permuted_mnist"
    (order,) = task.orders()
    assert sorted(order.tolist()) == list(range(784))
    for split in ("train", "test"):
        mixed, straight = first(task, split), first(plain, split)
        assert torch.equal(mixed.tokens, straight.tokens[..., torch.from_numpy(order)])
    other = sample(permuted=True, permutation_seed=1, dataset=Dataset.mnist)
    assert not torch.equal(first(other).tokens, first(task).tokens)
    assert task.describe("test", 3) == plain.describe("test", 3)


def test_truncation_keeps_the_first_pixels():
    short = first(sample(max_length=100)).tokens
    assert torch.equal(short, first(sample()).tokens[..., :100])


def test_validation_is_the_end_of_train(tmp_path):
    levels = np.zeros((50, 32, 32), np.uint8)
    levels[:, 0, 0] = np.arange(50)
    for split in ("train", "test"):
        path = tmp_path / f"cifar10_gray_{split}.npz"
        np.savez_compressed(path, images=levels, labels=(np.arange(50) % 10).astype(np.uint8))
    task = Pixels(path=str(tmp_path), partial=True)
    task.prepare()
    numbers = {s: task.split(s).tokens[::1024].tolist() for s in ("train", "validation", "test")}
    assert numbers == {
        "train": list(range(45)), "validation": list(range(45, 50)), "test": list(range(50)),
    }  # fmt: skip
    assert task.spec.source == f"files: {tmp_path.name} (a part)"


def test_an_image_is_shown_in_characters():
    lines = sample().describe("test", 0).splitlines()
    assert lines[-1] == "-> 0 (airplane)"
    assert len(lines) == 33
    assert any("#" in line or "%" in line for line in lines[1:6])


def test_a_missing_path(tmp_path):
    with pytest.raises(NotPrepared, match="cite Krizhevsky"):
        Pixels(path=str(tmp_path / "none")).prepare()
