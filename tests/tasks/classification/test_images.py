import gzip
import io
import struct
import tarfile

import numpy as np
import pytest

from lra.tasks.classification import images
from lra.tasks.classification.images import gray, read_cifar, read_datasets, read_mnist
from lra.tasks.errors import BadData, NotPrepared


def colours(number, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (number, 32, 32, 3), dtype=np.uint8)


def rows(pictures, labels):
    """Return the bytes of the binary form: a label, then the planes of red, green and blue."""
    planes = pictures.transpose(0, 3, 1, 2).reshape(len(pictures), -1)
    return np.concatenate([np.array(labels, np.uint8)[:, None], planes], axis=1).tobytes()


def pack(path, files):
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


@pytest.fixture
def batches():
    train = {f"data_batch_{i}": (colours(4, i), [i, 0, 9, 1]) for i in range(1, 6)}
    return train | {"test_batch": (colours(3, 9), [2, 3, 4])}


@pytest.fixture
def binary(tmp_path, batches):
    files = {f"cifar-10-batches-bin/{name}.bin": rows(*part) for name, part in batches.items()}
    return pack(tmp_path / "cifar-10-binary.tar.gz", files | {"cifar-10-batches-bin/readme": b"x"})


def test_luma_is_truncated():
    pixels = np.array([[[[255, 255, 255], [0, 0, 0], [255, 0, 0], [1, 2, 3]]]], np.uint8)
    # 0.2989 + 0.5870 + 0.1140 = 0.9999, times 255.5, truncated
    assert gray(pixels).ravel().tolist() == [255, 0, 76, 1]


def test_all_forms_of_cifar_are_one_data_set(tmp_path, batches, binary):
    found = read_cifar(binary)
    assert found["train"][0].shape == (20, 32, 32)
    assert found["train"][1].tolist() == [
        1,
        0,
        9,
        1,
        2,
        0,
        9,
        1,
        3,
        0,
        9,
        1,
        4,
        0,
        9,
        1,
        5,
        0,
        9,
        1,
    ]
    assert found["test"][1].tolist() == [2, 3, 4]
    np.testing.assert_array_equal(found["test"][0], gray(batches["test_batch"][0]))
    unpacked = tmp_path / "unpacked"
    safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # from 3.11.4 on
    with tarfile.open(binary) as tar:
        tar.extractall(unpacked, **safely)
    folder = tmp_path / "npz"
    folder.mkdir()
    for split, (pictures, labels) in found.items():
        np.savez_compressed(folder / f"cifar10_gray_{split}.npz", images=pictures, labels=labels)
    for other in (unpacked, folder):
        again = read_cifar(other)
        for split in ("train", "test"):
            for ours, theirs in zip(again[split], found[split], strict=True):
                np.testing.assert_array_equal(ours, theirs)


def test_batches_of_python_pickles_are_refused_with_the_way_out(tmp_path):
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    path = pack(tmp_path / "python.tar.gz", {f"cifar-10-batches-py/{n}": b"x" for n in names})
    with pytest.raises(
        NotPrepared, match=r"no batches of test .*=datasets.*not read the Python version"
    ):
        read_cifar(path)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda c: c[:-1], "not a multiple of 3073"),
        (lambda c: b"", "not a multiple of 3073"),
        (lambda c: b"\x0b" + c[1:], "example 0 has the label 11"),
    ],
)
def test_damaged_batches(tmp_path, batches, spoil, message):
    content = spoil(rows(*batches["test_batch"]))
    with pytest.raises(BadData, match=message):
        read_cifar(pack(tmp_path / "bad.tar.gz", {"test_batch.bin": content}))


def test_a_truncated_archive(tmp_path, binary):
    binary.write_bytes(binary.read_bytes()[:-200])
    with pytest.raises(BadData, match="truncated"):
        read_cifar(binary)


def test_what_is_missing_says_what_to_fetch(tmp_path, batches):
    with pytest.raises(NotPrepared, match="170,052,171 bytes"):
        read_cifar(tmp_path / "none.tar.gz")
    only = pack(tmp_path / "half.tar.gz", {"test_batch.bin": rows(*batches["test_batch"])})
    with pytest.raises(NotPrepared, match="no batches of train"):
        read_cifar(only)


def idx(array, magic):
    return (
        struct.pack(f">{1 + array.ndim}I", magic, *array.shape) + array.astype(np.uint8).tobytes()
    )


@pytest.fixture
def mnist(tmp_path):
    generator = np.random.default_rng(0)
    for prefix, number in (("train", 6), ("t10k", 3)):
        pictures = generator.integers(0, 256, (number, 28, 28))
        for name, content in (
            (f"{prefix}-images-idx3-ubyte.gz", idx(pictures, 2051)),
            (f"{prefix}-labels-idx1-ubyte.gz", idx(np.arange(number), 2049)),
        ):
            (tmp_path / name).write_bytes(gzip.compress(content))
    return tmp_path


def test_mnist_packed_or_not(mnist):
    found = read_mnist(mnist)
    assert found["train"][0].shape == (6, 28, 28)
    assert found["test"][1].tolist() == [0, 1, 2]
    packed = mnist / "t10k-images-idx3-ubyte.gz"
    (mnist / "t10k-images-idx3-ubyte").write_bytes(gzip.decompress(packed.read_bytes()))
    packed.unlink()
    np.testing.assert_array_equal(read_mnist(mnist)["test"][0], found["test"][0])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train-images-idx3-ubyte.gz", b"text", "first bytes are 74657874"),
        ("train-images-idx3-ubyte.gz", b"", "first bytes are missing"),
        ("train-labels-idx1-ubyte.gz", idx(np.arange(5), 2049), "has 5 labels, but there are 6"),
        ("train-labels-idx1-ubyte.gz", idx(np.arange(6) + 8, 2049), "label 10"),
        (
            "train-images-idx3-ubyte.gz",
            idx(np.zeros((6, 28, 28)), 2051)[:-3],
            "header states 6 x 28 x 28",
        ),
        ("train-images-idx3-ubyte.gz", idx(np.zeros((6, 20, 20)), 2051), "wanted 28 x 28"),
    ],
    ids=["text", "empty", "labels", "label", "cut", "small"],
)
def test_damaged_mnist(mnist, name, content, message):
    (mnist / name).write_bytes(gzip.compress(content))
    with pytest.raises(BadData, match=message):
        read_mnist(mnist)


def test_mnist_that_is_not_packed_as_its_name_says(mnist):
    (mnist / "t10k-labels-idx1-ubyte.gz").write_bytes(b"no gzip")
    with pytest.raises(BadData, match="truncated, damaged"):
        read_mnist(mnist)


def test_missing_mnist_says_what_to_fetch(tmp_path):
    with pytest.raises(NotPrepared, match=r"9,912,422 bytes, SHA-256 440fcabf"):
        read_mnist(tmp_path)


def test_images_through_datasets(tmp_path):
    import datasets

    pictures, labels = colours(4), [0, 1, 2, 3]
    features = datasets.Features({"img": datasets.Image(), "label": datasets.Value("int64")})
    for split in ("train", "test"):
        made = datasets.Dataset.from_dict({"img": list(pictures), "label": labels}, features)
        # Below a folder of that name, whose own path says nothing of splits.
        (folder := tmp_path / "data").mkdir(exist_ok=True)
        made.to_parquet(folder / f"{split}-00000-of-00001.parquet")
    found = read_datasets(images.CIFAR_HUB, folder)
    np.testing.assert_array_equal(found["test"][0], gray(pictures))
    assert found["train"][1].tolist() == labels
    with pytest.raises(BadData, match=r"columns .*wanted image and label"):
        read_datasets(images.MNIST_HUB, folder)
