"""Images as sequences of pixels: CIFAR-10 in gray (arXiv:2011.04006), MNIST, permuted MNIST.

    image [32, 32]  ->  1,024 gray levels, row by row, as symbols or scalars (`GrayTask`)
    target          0 … 9

CIFAR-10 has 10 classes with 5,000 training and 1,000 test images of 32 x 32 pixels each (Krizhevsky
2009). MNIST has 60,000 training and 10,000 test images of 28 x 28 pixels of 10 digits (LeCun et al.
1998). The task refuses incomplete data unless `partial` is set. As in the Long Range Arena, colours
become gray by their luma, truncated to a byte, and the validation split is the last tenth of train
in the official order.

The S4 and Mega papers train with `encoding=scalars`, which is easier than with symbols.
`permuted` applies one fixed permutation to the pixels of every image (permuted MNIST), and `scan`
reads them in another order.

With `colour=rgb`, CIFAR-10 keeps its colours: a pixel is a token of three channels
(`encoding=scalars`), or three symbols, red, green and blue. As in S4's experiments on CIFAR-10,
there is no augmentation, and the validation images are drawn from train (`VALIDATION_SEED`).
"""

import hashlib
from collections.abc import Callable
from enum import StrEnum, auto
from functools import cached_property
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from lra.tasks.classification import images
from lra.tasks.classification.gray import Encoding, GrayTask, rows_of
from lra.tasks.classification.images import Hub, Images
from lra.tasks.classification.objectives import InputObjective, MaskedReplacement
from lra.tasks.classification.scans import Scan, Shuffle, scan_orders
from lra.tasks.data.batching import Draw, permutation, random_words
from lra.tasks.data.published_data import check_partial, check_whole, given_path, source_name
from lra.tasks.data.sources import data_root, path_identity
from lra.tasks.data.storage import RaggedRows
from lra.tasks.data.stored_task import GRAY_LEVELS, identity_of
from lra.tasks.errors import BadData
from lra.tasks.task import Kind, TaskSpec

VERSION = 1
SAMPLE_SIZES = {"train": 400, "test": 200}
RGB_MEAN, RGB_DEVIATION = (0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)
"""Usual numbers for red, green and blue of CIFAR-10."""
VALIDATION_SEED = 42
"""Seed that draws the validation images of `colour=rgb`."""


class Dataset(StrEnum):
    """The data set."""

    cifar10 = auto()
    mnist = auto()


class Colour(StrEnum):
    """What is read of a pixel."""

    gray = auto()
    rgb = auto()


class PixelSource(StrEnum):
    """Where the images come from."""

    files = auto()
    datasets = auto()
    sample = auto()


class _DatasetFacts(NamedTuple):
    """Facts about a data set."""

    task: str
    """Name of the task."""
    side: int
    sizes: dict[str, int]
    read: Callable[..., dict[str, Images]]
    hub: Hub
    content: str
    """Hash of the public files."""
    mean: float
    deviation: float
    licence: str


def _digest(*hashes: str) -> str:
    """Return one hash for several."""
    return hashlib.sha256(" ".join(hashes).encode()).hexdigest()


DATASETS = {
    Dataset.cifar10: _DatasetFacts(
        task="image",
        side=images.CIFAR_SIDE,
        sizes={"train": 50_000, "test": 10_000},
        read=images.read_cifar,
        hub=images.CIFAR_HUB,
        content=images.CIFAR_ARCHIVE.sha256,
        mean=0.48,
        deviation=0.24,
        licence=images.CIFAR_LICENCE,
    ),
    Dataset.mnist: _DatasetFacts(
        task="mnist",
        side=images.MNIST_SIDE,
        sizes={"train": 60_000, "test": 10_000},
        read=images.read_mnist,
        hub=images.MNIST_HUB,
        content=_digest(*(remote.sha256 for remote in images.MNIST_FILES.values())),
        mean=0.1307,
        deviation=0.3081,
        licence=images.MNIST_LICENCE,
    ),
}


class Pixels(GrayTask):
    """Classification of the images of CIFAR-10 or MNIST, read pixel by pixel.

    Args:
        dataset: cifar10 or mnist.
        source: files, datasets or sample (a few hundred synthetic images for trials).
        path: With source=files, an archive or a folder, see `lra.tasks.classification.images`; with
            source=datasets, a folder that `datasets.load_dataset` reads. Null: the public data.
        partial: Whether `path` has only a part of the images, or others; every row then says so.
        colour: gray, or rgb (CIFAR-10 only).
        encoding: symbols or scalars.
        mean: Number subtracted from level / 255, for scalars; null: the mean of the data set, or of
            each colour.
        deviation: Divisor of level / 255 - mean, for scalars; null: that of the data set.
        black_is_padding: Whether black pixels have the padding id 0, as in the Long Range Arena
            code; for symbols.
        scan: Order in which pixels are read: rows, columns, snake, hilbert, bit_reversal or
            rows_and_columns (two pixels in a token, with encoding=scalars).
        permuted: Whether one fixed permutation is applied to the pixels of every image.
        permutation: Which one: random or bit_reversal.
        permutation_seed: Seed of the random permutation of `permuted`.
        max_length: Number of tokens that a model reads of each image, from the first; null: all.
        validation_fraction: Share of the training images for validation: the last ones, or, with
            colour=rgb, a random draw.
        objective: What a model predicts: classify (a class), or masked, causal, prefix, unilm,
            permutation or replaced (tokens).
        masked_share: Fraction of tokens to draw, not for classify, causal and prefix; null: 50 %.
        masked_replacement: What masked tokens become: mask, or bert (80 % mask, 10 % random id).
    """

    incidental: ClassVar[frozenset[str]] = frozenset({"path", "partial"})
    """Options that are no part of a result's identity; the data hash stands for both."""

    def __init__(
        self,
        *,
        dataset: Dataset = Dataset.cifar10,
        source: PixelSource = PixelSource.files,
        path: str | None = None,
        partial: bool = False,
        colour: Colour = Colour.gray,
        encoding: Encoding = Encoding.symbols,
        mean: float | None = None,
        deviation: float | None = None,
        black_is_padding: bool = False,
        scan: Scan = Scan.rows,
        permuted: bool = False,
        permutation: Shuffle = Shuffle.random,
        permutation_seed: int = 0,
        max_length: int | None = None,
        validation_fraction: float = 0.1,
        objective: InputObjective = InputObjective.classify,
        masked_share: float | None = None,
        masked_replacement: MaskedReplacement = MaskedReplacement.mask,
    ) -> None:
        self.facts, self.source = DATASETS[dataset], source
        self.rgb = colour is Colour.rgb
        if self.rgb and (self.facts.task != "image" or black_is_padding):
            raise ValueError(
                "task.colour=rgb needs task.dataset=cifar10, whose images have colours, and "
                f"task.black_is_padding=false: got dataset={dataset}, "
                f"black_is_padding={str(black_is_padding).lower()}; set task.colour=gray"
            )
        whole, pixels = self.facts.side**2, len(scan_orders(scan, self.facts.side))
        if encoding is Encoding.scalars:
            self.channels = pixels * (3 if self.rgb else 1)
        elif pixels > 1:
            raise ValueError(
                f"task.scan={scan} puts two pixels into a token: got task.encoding={encoding}; set "
                "task.encoding=scalars"
            )
        elif self.rgb:
            whole *= 3
        if max_length is not None and not 1 <= max_length <= whole:
            raise ValueError(
                f"task.max_length: got {max_length}; wanted 1 to {whole}, the tokens of an image, "
                "or null for all of them"
            )
        if permuted and scan is not Scan.rows:
            raise ValueError(
                f"task.permuted=true replaces the scan of an image: got task.scan={scan}; set "
                "task.scan=rows or task.permuted=false"
            )
        if permutation is not Shuffle.random and (permutation_seed or not permuted):
            raise ValueError(
                f"task.permutation={permutation} needs task.permuted=true and draws nothing: got "
                f"permuted={str(permuted).lower()}, permutation_seed={permutation_seed}; set "
                "task.permutation=random, or task.permuted=true and task.permutation_seed=0"
            )
        self.scan, self.shuffle = scan, permutation
        if not 0 < validation_fraction < 1:
            raise ValueError(
                f"task.validation_fraction must lie in (0, 1): got {validation_fraction}"
            )
        if permutation_seed < 0:
            raise ValueError(f"task.permutation_seed must be at least 0: got {permutation_seed}")
        self.path, self.partial = given_path(path, source), partial
        check_partial(partial, path is not None)
        self.encode(
            encoding,
            mean=self.facts.mean if mean is None else mean,
            deviation=self.facts.deviation if deviation is None else deviation,
            black_is_padding=black_is_padding,
        )
        if self.rgb:
            self.mean = pixels * RGB_MEAN if mean is None else mean
            self.deviation = pixels * RGB_DEVIATION if deviation is None else deviation
        self.permuted, self.permutation_seed = permuted, permutation_seed
        self.validation_fraction = validation_fraction
        self.max_length = whole if max_length is None else max_length
        self.answer(objective, masked_share, masked_replacement)

    @cached_property
    def spec(self) -> TaskSpec:
        """The facts about this task; with a `path`, the data hash is a hash of its files."""
        spec = TaskSpec(
            name=f"permuted_{self.facts.task}" if self.permuted else self.facts.task,
            version=VERSION,
            kind=Kind.classification,
            vocabulary=self.vocabulary,
            classes=images.CLASSES,
            max_length=self.max_length,
            padded=self.black_is_padding,
            scalars=self.scalars,
            channels=self.channels,
            metric="accuracy",
            source=self._source_name(),
            data_hash=self.content_hash(self._identity),
            sizes=self._sizes(),
        )
        return self.facts_of(spec)

    def _source_name(self) -> str:
        """Return the source as rows print it, with the name of the public data set."""
        name = next(str(dataset) for dataset, facts in DATASETS.items() if facts is self.facts)
        public = name if self.source is PixelSource.files else f"{name} (datasets)"
        marks = [mark for mark, holds in (
            ("rgb", self.rgb),
            (f"scan={self.scan}", self.scan is not Scan.rows),
            (f"permutation={self.shuffle}", self.shuffle is not Shuffle.random),
        ) if holds]  # fmt: skip
        name_of_data = source_name(self.source, self.path, partial=self.partial, public=public)
        return ", ".join((name_of_data, *marks))

    def _identity(self) -> str:
        """Return the hash of everything that decides the prepared data."""
        facts: dict[str, object] = {
            "version": VERSION,
            "task": self.facts.task,
            "source": self.source.value,
            "validation_fraction": self.validation_fraction,
        }
        if self.permuted:
            facts["permutation_seed"] = self.permutation_seed
        if self.shuffle is not Shuffle.random:
            facts["permutation"] = self.shuffle
        if self.scan is not Scan.rows:
            facts["scan"] = self.scan
        if self.rgb:
            facts["colour"] = Colour.rgb
        if self.partial:
            facts["partial"] = True
        if self.path is not None:
            facts["content"] = path_identity(
                self.path, f"set task.path to an archive or a folder; {self.facts.licence}"
            )
        elif self.source is PixelSource.files:
            facts["content"] = self.facts.content
        elif self.source is PixelSource.datasets:
            facts["content"] = f"{self.facts.hub.name}@{self.facts.hub.revision}"
        return identity_of(facts)

    def _sizes(self) -> dict[str, int]:
        """Return the number of examples by split; {} for the user's files."""
        if self.path is not None:
            return {}
        sizes = SAMPLE_SIZES if self.source is PixelSource.sample else self.facts.sizes
        validation = self._validation_size(sizes["train"])
        return {
            "train": sizes["train"] - validation,
            "validation": validation,
            "test": sizes["test"],
        }

    def _validation_size(self, number: int) -> int:
        """Return how many of `number` training images the validation split takes."""
        # At least one image for each of the two splits.
        return min(number - 1, max(1, round(number * self.validation_fraction)))

    @property
    def folder(self) -> Path:
        """Folder of the prepared data; every encoding and `max_length` uses the same one."""
        return data_root() / f"{self.spec.name}-{self.source}-{self.spec.data_hash}"

    @property
    def shows_whole_pictures(self) -> bool:
        """Whether a model reads every pixel of a gray picture, row by row."""
        by_rows = not self.permuted and self.scan is Scan.rows
        return by_rows and not self.rgb and self.max_length == self.facts.side**2

    def copies_allowed(self, first: str, second: str) -> float:
        """Return the share of images that two splits may have in common; CIFAR-10 repeats a few."""
        del first, second
        return 0.01

    def make(self) -> None:
        """Read the images, split them, and store their levels."""
        by_split = self._read_images()
        if self.source is not PixelSource.sample:
            self._check_sizes(by_split)
        pictures, labels = by_split["train"]
        order = np.arange(len(labels))
        if self.rgb:
            order = permutation(Draw.split, VALIDATION_SEED, len(labels))
        train, validation = np.split(order, [len(order) - self._validation_size(len(order))])
        splits = {
            "train": self._rows(pictures[train], labels[train]),
            "validation": self._rows(pictures[validation], labels[validation]),
            "test": self._rows(*by_split["test"]),
        }
        self.write(splits, vocabulary=GRAY_LEVELS, licence=self.facts.licence)

    def _check_sizes(self, images: dict[str, Images]) -> None:
        """Raise `BadData` if published images are missing, or train is too small to split."""
        where = self.spec.source
        sizes = {split: len(images[split][1]) for split in self.facts.sizes}
        check_whole(sizes, self.facts.sizes, where=where, of="images", partial=self.partial)
        if sizes["train"] < 2:
            raise BadData(
                f"{where}: train has 1 image; wanted at least 2, because one of them is for "
                "validation"
            )

    def _rows(self, pictures: np.ndarray, labels: np.ndarray) -> RaggedRows:
        """Return pictures [n, s, s, …] as stored sequences of pixels, in the order of the task."""
        rows = pictures.reshape(len(pictures), self.facts.side**2, -1)
        return rows_of(np.concatenate([rows[:, o] for o in self.orders()], axis=2), labels)

    def orders(self) -> list[np.ndarray]:
        """Return the number of the pixel at each position, for each pixel of a token."""
        if self.permuted and self.shuffle is Shuffle.random:
            return [permutation(Draw.split, self.permutation_seed, self.facts.side**2)]
        return scan_orders(Scan.bit_reversal if self.permuted else self.scan, self.facts.side)

    def _read_images(self) -> dict[str, Images]:
        """Return the images of train and test from the source."""
        if self.source is PixelSource.sample:
            return sample_images(self.facts.side, rgb=self.rgb)
        colours = {"rgb": True} if self.rgb else {}
        if self.source is PixelSource.datasets:
            return images.read_datasets(self.facts.hub, self.path, **colours)
        return self.facts.read(self.path, **colours)

    def levels(self, row: np.ndarray) -> np.ndarray:
        """Return the gray picture of a stored row, by rows; missing pixels are black."""
        side, colours, orders = self.facts.side, 3 if self.rgb else 1, self.orders()
        picture = np.zeros((side**2, colours), np.uint8)
        pixels = row.reshape(-1, len(orders) * colours)[:, :colours]  # by the first order
        picture[orders[0][: len(pixels)]] = pixels
        square: np.ndarray = picture.reshape(side, side, colours)
        return images.gray(square[None])[0] if self.rgb else square[..., 0]

    def class_name(self, target: int) -> str:
        """Return the name of the class `target`."""
        return images.CIFAR_NAMES[target] if self.facts.task == "image" else f"digit {target}"


def sample_images(side: int, *, rgb: bool = False) -> dict[str, Images]:
    """Return synthetic images of noise with a bright bar, at a position that shows the class.

    With `rgb`, the bar is orange.
    """
    splits = {}
    for seed, (split, number) in enumerate(SAMPLE_SIZES.items()):
        # 8 pixels from each 64-bit word; a quarter of a byte is a dark level of noise.
        words = random_words(Draw.sample, seed, number * side * side // 8).view(np.uint8)
        pictures = (words.reshape(number, side, side) // 4).astype(np.uint8)
        labels = (np.arange(number) % images.CLASSES).astype(np.uint8)
        for picture, label in zip(pictures, labels, strict=True):
            bar = 2 + (side - 4) * int(label) // images.CLASSES
            picture[bar : bar + 2] += 160
        if rgb:
            pictures = pictures[..., None] // np.array([1, 2, 4], np.uint8)
        splits[split] = pictures, labels
    return splits
