"""Readers of CIFAR-10 and MNIST, which return 8-bit gray levels.

Readers return (images [n, side, side] uint8, labels [n] uint8) by split, in the official order.

CIFAR-10 (Krizhevsky 2009; no licence stated, free for research): the task fetches the binary
archive; a row has a label and 3 x 1024 bytes. It refuses the archive of Python pickles, because
reading a pickle can run any program. Colours become gray as by TensorFlow's `rgb_to_grayscale` on
bytes, which the Long Range Arena uses.
MNIST (LeCun, Cortes, Burges; no licence stated, usually CC BY-SA 3.0): the four IDX files.
"""

import io
import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float32, UInt8
from PIL import Image, UnidentifiedImageError

from lra.tasks.classification.labels import whole_labels
from lra.tasks.data import hub
from lra.tasks.data.archives import open_member, open_packed, opened_zip, tar_members
from lra.tasks.data.sources import data_root, download
from lra.tasks.errors import BadData, NotPrepared

Images: TypeAlias = tuple[UInt8[np.ndarray, "n s s *rgb"], UInt8[np.ndarray, " n"]]
"""Pictures of gray levels, or with a last axis of red, green and blue, and their labels."""
CLASSES = 10
CIFAR_SIDE, MNIST_SIDE = 32, 28
CIFAR_BYTES, IDX_BYTES = 1 << 28, 1 << 26
"""Most unpacked bytes that are read: of all CIFAR-10 batches together, and of one IDX file."""
CIFAR_NAMES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
LUMA = np.array([0.2989, 0.5870, 0.1140], np.float32)
"""Weights of red, green and blue in the gray level."""
IDX_IMAGES, IDX_LABELS = 2051, 2049
"""First four bytes of an IDX file of images, and of labels, as a number."""


class Remote(NamedTuple):
    """A public file: its address, and the size and hash that a download must have."""

    url: str
    size: int
    sha256: str
    mirrors: tuple[str, ...] = ()


CIFAR_ARCHIVE = Remote(
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    170_052_171,
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)


class Hub(NamedTuple):
    """A data set of images on the Hugging Face hub."""

    name: str
    revision: str
    image: str
    """Name of the column of images."""
    side: int

    @property
    def url(self) -> str:
        """Address of the files for a browser."""
        return f"https://huggingface.co/datasets/{self.name}/tree/{self.revision}"


CIFAR_HUB = Hub("uoft-cs/cifar10", "0b2714987fa478483af9968de7c934580d0bb9a2", "img", CIFAR_SIDE)
MNIST_HUB = Hub("ylecun/mnist", "77f3279092a1c1579b2250db8eafed0ad422088c", "image", MNIST_SIDE)
MNIST_ADDRESSES = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)


def _mnist(name: str, size: int, sha256: str) -> Remote:
    """Return an MNIST file with an address on each server of `MNIST_ADDRESSES`."""
    url, *mirrors = (address + name for address in MNIST_ADDRESSES)
    return Remote(url, size, sha256, tuple(mirrors))


MNIST_FILES = {
    remote.url.rpartition("/")[2]: remote
    for remote in (
        _mnist("train-images-idx3-ubyte.gz", 9_912_422,
               "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        _mnist("train-labels-idx1-ubyte.gz", 28_881,
               "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        _mnist("t10k-images-idx3-ubyte.gz", 1_648_877,
               "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        _mnist("t10k-labels-idx1-ubyte.gz", 4_542,
               "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    )
}  # fmt: skip
CIFAR_LICENCE = (
    "the publisher of CIFAR-10 states no licence and provides it for research; please cite "
    "Krizhevsky 2009"
)
MNIST_LICENCE = (
    "the publishers of MNIST state no licence, and copies are usually under CC BY-SA 3.0; please "
    "cite LeCun et al. 1998"
)


def gray(rgb: UInt8[np.ndarray, "n s t 3"]) -> UInt8[np.ndarray, "n s t"]:
    """Return the gray level (luma) of each RGB pixel, truncated to a byte.

    As in TensorFlow, colours are scaled to 0 … 1, and the gray level is scaled back by 255.5.
    """
    scaled: Float32[np.ndarray, "n s t 3"] = rgb.astype(np.float32) * np.float32(1 / 255)
    levels: UInt8[np.ndarray, "n s t"] = (scaled @ LUMA * np.float32(255.5)).astype(np.uint8)
    return levels


def fetch_file(remote: Remote, instructions: str) -> Path:
    """Return the local copy of a public file; download it if it is missing.

    `instructions` end the message about a failed download: another way to get the data.
    """
    target = data_root() / "downloads" / remote.url.rpartition("/")[2]
    facts = f"{target.name} has {remote.size:,} bytes and SHA-256 {remote.sha256}"
    return download(
        remote.url,
        target,
        size=remote.size,
        sha256=remote.sha256,
        mirrors=remote.mirrors,
        instructions=(
            f"download this file on another machine and put it at {target} ({facts}), or "
            f"{instructions}"
        ),
    )


# --- CIFAR-10 ------------------------------------------------------------------------------------


def read_cifar(path: Path | None, *, rgb: bool = False) -> dict[str, Images]:
    """Read CIFAR-10 in gray, or in colours.

    Args:
        path: The binary archive, a folder with its files, or a folder with
            cifar10_gray_{train,test}.npz (`images`, `labels`); None: the public archive.
        rgb: Whether to return red, green and blue instead of gray levels.

    Raises:
        NotPrepared: `path` has no such files.
        BadData: A file is damaged or has other content.
    """
    if path is None:
        path = fetch_file(
            CIFAR_ARCHIVE,
            "set task.path to your copy, or task.source=sample for a trial; " + CIFAR_LICENCE,
        )
    if path.is_dir() and (path / "cifar10_gray_train.npz").is_file():
        if rgb:
            raise BadData(
                f"{path} has only gray pictures, but task.colour=rgb needs colours; set task.path "
                "to the binary version of CIFAR-10, or task.colour=gray"
            )
        return {split: _read_npz(path / f"cifar10_gray_{split}.npz") for split in ("train", "test")}
    files = dict(_members(path))
    names = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}
    splits: dict[str, Images] = {}
    for split, wanted in names.items():
        parts = [
            _cifar_binary(files[name], f"{path}: {name}", rgb=rgb)
            for name in wanted
            if name in files
        ]
        if parts:
            splits[split] = _concatenated(parts)
    absent = {"train", "test"} - splits.keys()
    if absent:
        raise NotPrepared(
            f"{path} has no batches of {' and of '.join(sorted(absent))}; set task.path to the "
            "binary version of CIFAR-10, with data_batch_1.bin to data_batch_5.bin and "
            f"test_batch.bin ({CIFAR_ARCHIVE.url}), or set task.source=datasets, which needs no "
            "archive; lra does not read the Python version, which has no .bin files"
        )
    return splits


def _concatenated(parts: list[tuple[np.ndarray, np.ndarray]]) -> Images:
    """Return several batches of images and labels as one."""
    images, labels = zip(*parts, strict=True)
    return np.concatenate(images), np.concatenate(labels)


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name, without folders, and the content of each batch file of `path`."""
    if path.is_dir():
        for file in sorted(path.rglob("*_batch*")):
            if file.is_file():
                yield file.name, file.read_bytes()
        return
    if not path.is_file():
        raise NotPrepared(
            f"{path} is missing; download {CIFAR_ARCHIVE.url} ({CIFAR_ARCHIVE.size:,} bytes) and "
            f"put the archive, or its unpacked folder, at this path; {CIFAR_LICENCE}"
        )
    batches = tar_members(path, lambda member: "_batch" in member.name, most=CIFAR_BYTES)
    for member, content in batches:
        yield member.name, content


def _cifar_binary(content: bytes, where: str, *, rgb: bool) -> Images:
    """Return the images and labels in the content of a batch file; `where` opens messages."""
    row_bytes = 1 + 3 * CIFAR_SIDE**2
    if not content or len(content) % row_bytes:
        raise BadData(
            f"{where}: the file has {len(content)} bytes, which is not a multiple of {row_bytes}, "
            "the bytes of one image; the file is truncated or a wrong one: fetch it again"
        )
    rows = np.frombuffer(content, np.uint8).reshape(-1, row_bytes)
    # After its label, an image has three planes: all red values, all green ones, all blue ones.
    images = rows[:, 1:].reshape(-1, 3, CIFAR_SIDE, CIFAR_SIDE).transpose(0, 2, 3, 1)
    return images if rgb else gray(images), whole_labels(rows[:, 0], CLASSES, where)


def _read_npz(path: Path) -> Images:
    """Return the arrays `images` and `labels` of a .npz file."""
    if not path.is_file():
        raise NotPrepared(
            f"{path} is missing; the folder needs this file with the uint8 arrays images "
            "[n, 32, 32] and labels [n]"
        )
    with opened_zip(path, CIFAR_BYTES) as packed:
        arrays = []
        for name in ("images.npy", "labels.npy"):
            with open_member(packed, name) as file:
                arrays.append(_array(file.read(), f"{path}, {name}"))
    images, labels = arrays
    if images.dtype != np.uint8 or images.shape != (len(labels), CIFAR_SIDE, CIFAR_SIDE):
        raise BadData(
            f"{path}: the array images has the type {images.dtype} and the shape {images.shape}; "
            f"wanted uint8 and ({len(labels)}, {CIFAR_SIDE}, {CIFAR_SIDE})"
        )
    return images, whole_labels(labels, CLASSES, str(path))


def _array(content: bytes, where: str) -> np.ndarray:
    """Return the array in the content of a .npy file; check its size before an array is made."""
    file = io.BytesIO(content)
    if np.lib.format.read_magic(file) != (1, 0):
        raise BadData(f"{where} is not a .npy file of version 1.0; write it with numpy.savez")
    shape, by_columns, kind = np.lib.format.read_array_header_1_0(file)
    rest = len(content) - file.tell()
    if kind.kind not in "iufb" or rest != kind.itemsize * math.prod(shape) or not shape:
        raise BadData(
            f"{where}: the file has {rest:,} bytes for an array of type {kind} and shape {shape}; "
            "wanted a complete array of numbers"
        )
    flat = np.frombuffer(content, kind, offset=file.tell())
    return flat.reshape(shape, order="F" if by_columns else "C")


def read_datasets(remote: Hub, path: Path | None, *, rgb: bool = False) -> dict[str, Images]:
    """Read images by the `datasets` library, from the folder `path` or (None) the hub.

    They are gray, or have colours (`rgb`).
    """
    import datasets

    loaded = hub.load(
        remote.name,
        remote.revision,
        path,
        columns=(remote.image, "label"),
        splits=("train", "test"),
        instructions=(
            f"on a machine with a network connection, download the parquet files of {remote.url}, "
            "put them into a folder and set task.path to this folder; or set task.source=files or "
            "task.source=sample"
        ),
    )
    splits = {}
    for split in ("train", "test"):
        where, rows = f"{path or remote.name}, {split}", loaded[split]
        kind = rows.features[remote.image]
        if not isinstance(kind, datasets.Image):
            raise BadData(f"{where}: the column {remote.image} has the type {kind}; wanted images")
        packed = rows.cast_column(remote.image, datasets.Image(decode=False))[remote.image]
        images = [
            _unpack_png(p, remote.side, f"{where}, row {n}", rgb=rgb) for n, p in enumerate(packed)
        ]
        labels = whole_labels(list(rows["label"]), CLASSES, where)
        splits[split] = np.stack(images), labels
    return splits


def _unpack_png(row: Any, side: int, where: str, *, rgb: bool) -> UInt8[np.ndarray, "s s *rgb"]:
    """Return the picture in `row["bytes"]`; check its size before it is decompressed."""
    content = row["bytes"] if isinstance(row, dict) else None
    if not isinstance(content, bytes):  # a path instead could name any file of this machine
        raise BadData(f"{where}: the row has no picture; wanted the bytes of a PNG file")
    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as opened:
            if opened.size != (side, side):
                width, height = opened.size
                raise BadData(
                    f"{where}: the picture has {width} x {height} pixels; wanted {side} x {side}"
                )
            if opened.mode not in ("L", "RGB")[int(rgb) :]:
                raise BadData(
                    f"{where}: the picture has the mode {opened.mode}; wanted "
                    f"{'' if rgb else 'gray (L) or '}RGB"
                )
            pixels = np.asarray(opened)
    except (
        UnidentifiedImageError, OSError, SyntaxError, struct.error, zlib.error,
        Image.DecompressionBombError,
    ) as error:  # fmt: skip
        raise BadData(
            f"{where}: lra cannot read this PNG file ({error}); fetch the data again"
        ) from error
    return gray(pixels[None])[0] if pixels.ndim == 3 and not rgb else pixels


# --- MNIST ---------------------------------------------------------------------------------------


def read_mnist(path: Path | None) -> dict[str, Images]:
    """Read MNIST from its four IDX files, compressed or not, in the folder `path`, or download."""
    splits = {}
    for split, prefix in (("train", "train"), ("test", "t10k")):
        images = _read_idx(_mnist_file(path, f"{prefix}-images-idx3-ubyte.gz"), IDX_IMAGES)
        label_file = _mnist_file(path, f"{prefix}-labels-idx1-ubyte.gz")
        labels = _read_idx(label_file, IDX_LABELS)
        if len(images) != len(labels):
            raise BadData(
                f"{label_file} has {len(labels)} labels, but there are {len(images)} images"
            )
        if images.shape[1:] != (MNIST_SIDE, MNIST_SIDE):
            _, height, width = images.shape
            raise BadData(f"{label_file}: images have {width} x {height} pixels; wanted 28 x 28")
        splits[split] = images, whole_labels(labels, CLASSES, str(label_file))
    return splits


def _mnist_file(folder: Path | None, name: str) -> Path:
    """Return the path of a file in `folder`, compressed or not; None downloads the file."""
    if folder is None:
        return fetch_file(
            MNIST_FILES[name],
            "set task.path to the folder of the four files, or task.source=sample for a trial; "
            f"{MNIST_LICENCE}",
        )
    for candidate in (folder / name, folder / name.removesuffix(".gz")):
        if candidate.is_file():
            return candidate
    remote = MNIST_FILES[name]
    raise NotPrepared(
        f"{folder / name} is missing; download {remote.url} ({remote.size:,} bytes, SHA-256 "
        f"{remote.sha256}) into this folder; {MNIST_LICENCE}"
    )


def _read_idx(path: Path, magic: int) -> np.ndarray:
    """Return the images [n, s, s] or labels [n] in an IDX file that begins with `magic`."""
    with open_packed(path, IDX_BYTES) as file:
        content = file.read()
    axes = 3 if magic == IDX_IMAGES else 1
    header = 4 * (1 + axes)  # bytes: the magic number, and the size of each axis
    if len(content) < header or struct.unpack(">I", content[:4])[0] != magic:
        raise BadData(
            f"{path} is not an IDX file of {'images' if axes == 3 else 'labels'}: the first bytes "
            f"are {content[:4].hex() or 'missing'}; wanted {magic:08x}"
        )
    shape = struct.unpack(f">{axes}I", content[4:header])
    array = np.frombuffer(content, np.uint8, offset=header)
    if len(array) != math.prod(shape):
        raise BadData(
            f"{path}: the file has {len(array)} values, but its header states "
            f"{' x '.join(map(str, shape))}; the file is truncated: fetch it again"
        )
    return array.reshape(shape)
