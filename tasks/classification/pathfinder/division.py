"""Division of the archive's pictures, which are one list, into train, validation and test.

    seeded   80 / 10 / 10 % in a random order, which `data_seed` decides
    tfds     as in the code of the Long Range Arena: 80 / 10 / 10 % in the order of TFDS, which
             sorts examples by the MD5 hash of the name of the set and their keys
    s4       as in the S4 repository: `torch.utils.data.random_split` with seed 42, applied to the
             list in the order of the metadata files' numbers

Published scores use `tfds` or `s4`, which have different test sets. As in the two codes, `tfds`
removes empty pictures after the division, and `s4` before it.
"""

import hashlib
from collections.abc import Sequence
from enum import StrEnum, auto

from lra.tasks.classification.pathfinder.files import SETS, ListedPicture
from lra.tasks.data.batching import Draw, permutation
from lra.tasks.errors import BadData
from lra.tasks.task import SPLITS
from lra.tasks.tensors import torch

S4_SEED = 42
LEVELS = dict(zip(SETS.values(), ("easy", "intermediate", "hard"), strict=True))
"""Name of each folder of the archive in the code of the Long Range Arena."""


class Division(StrEnum):
    """How pictures are divided."""

    seeded = auto()
    tfds = auto()
    s4 = auto()


def divide_pictures(
    listed: Sequence[ListedPicture], division: Division, *, folder: str, seed: int
) -> dict[str, list[ListedPicture]]:
    """Return the pictures of each split, without pictures of 0 bytes.

    Args:
        listed: All pictures, in the order of the archive.
        division: How the pictures are divided.
        folder: Name of the set's folder, for `tfds`.
        seed: Seed of the order, for `seeded`.

    Raises:
        BadData: There are too few pictures, or `tfds` has no set of this name.
    """
    nonempty = [entry for entry in listed if not entry.empty]
    # In each branch, `first` and `second` are where validation and test begin in `order`.
    if division is Division.tfds:
        if folder not in LEVELS:
            raise BadData(
                f"task.split=tfds needs a folder with a name of the archive: got {folder}; wanted "
                f"one of {', '.join(LEVELS)}; rename the folder, or set task.split=seeded"
            )
        order = sorted(listed, key=lambda entry: _hash(LEVELS[folder], entry.key))
        first, second = round(0.8 * len(order)), round(0.9 * len(order))
    elif division is Division.s4:
        generator = torch.Generator().manual_seed(S4_SEED)
        order = [nonempty[i] for i in torch.randperm(len(nonempty), generator=generator).tolist()]
        test_size = int(0.1 * len(order))
        first, second = len(order) - 2 * test_size, len(order) - test_size
    else:
        order = [nonempty[i] for i in permutation(Draw.split, seed, len(nonempty)).tolist()]
        first = round(0.8 * len(order))
        second = first + round(0.1 * len(order))
    cut = (order[:first], order[first:second], order[second:])
    splits = {
        split: [entry for entry in part if not entry.empty]
        for split, part in zip(SPLITS, cut, strict=True)
    }
    if not all(splits.values()):
        raise BadData(f"{folder}: {len(nonempty)} pictures are too few for three splits")
    return splits


def _hash(split: str, key: str) -> bytes:
    return hashlib.md5((split + key).encode(), usedforsecurity=False).digest()
