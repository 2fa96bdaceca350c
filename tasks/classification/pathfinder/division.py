"""How the archive's pictures are divided into train, validation and test: it has one list of all.

    seeded   by `data_seed`, 80 / 10 / 10 %
    tfds     as the code of the Long Range Arena: 80 / 10 / 10 % of the order in which TFDS writes
             its builder's examples, that of the MD5 hashes of the split's name and their keys
    s4       as the S4 repository: `torch.utils.data.random_split`, seed 42, of the list in the
             order of the metadata files' numbers

Published scores were made on one of the last two; their test sets differ. Empty pictures leave a
split of `tfds` after the cut, as there, and the list of `s4` before it.
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
"""Folders of the archive, and what the released code calls them."""


class Division(StrEnum):
    """How pictures are divided."""

    seeded = auto()
    tfds = auto()
    s4 = auto()


def divide_pictures(
    listed: Sequence[ListedPicture], division: Division, *, folder: str, seed: int
) -> dict[str, list[ListedPicture]]:
    """Return the pictures of each split, none of them empty.

    Args:
        listed: All pictures, in the order of the archive.
        division: How they are divided.
        folder: Name of the set, for `tfds`.
        seed: For `seeded`.

    Raises:
        BadData: They are too few, or `tfds` knows no such set.
    """
    whole = [entry for entry in listed if not entry.empty]
    if division is Division.tfds:
        if folder not in LEVELS:
            raise BadData(
                f"task.split=tfds needs the published name of the set: got {folder}, wanted one "
                f"of {', '.join(LEVELS)}; use the archive's names, or set task.split=seeded"
            )
        order = sorted(listed, key=lambda entry: _hash(LEVELS[folder], entry.key))
        first, second = round(0.8 * len(order)), round(0.9 * len(order))
    elif division is Division.s4:
        generator = torch.Generator().manual_seed(S4_SEED)
        order = [whole[i] for i in torch.randperm(len(whole), generator=generator).tolist()]
        held = int(0.1 * len(order))
        first, second = len(order) - 2 * held, len(order) - held
    else:
        order = [whole[i] for i in permutation(Draw.split, seed, len(whole)).tolist()]
        first = round(0.8 * len(order))
        second = first + round(0.1 * len(order))
    cut = (order[:first], order[first:second], order[second:])
    splits = {
        split: [entry for entry in part if not entry.empty]
        for split, part in zip(SPLITS, cut, strict=True)
    }
    if not all(splits.values()):
        raise BadData(f"{folder}: {len(whole)} pictures are too few for three splits")
    return splits


def _hash(split: str, key: str) -> bytes:
    return hashlib.md5((split + key).encode(), usedforsecurity=False).digest()
