"""A validation or test split held out of labelled texts: the same on every machine."""

import hashlib
from collections.abc import Sequence
from itertools import groupby

import numpy as np
from jaxtyping import Bool

from lra.tasks.errors import BadData


def held_out(
    texts: Sequence[tuple[bytes, int]], fraction: float, option: str = "task.validation_fraction"
) -> Bool[np.ndarray, " n"]:
    """Return which texts are held out: `fraction` of each label, by text hash.

    Copies of one text go to one side together.

    Raises:
        BadData: A label has too few texts for both splits.
    """
    held = np.zeros(len(texts), bool)
    for label in sorted({label for _, label in texts}):
        by_hash = sorted(
            (hashlib.sha256(text).digest(), index)
            for index, (text, text_label) in enumerate(texts)
            if text_label == label
        )
        wanted = round(len(by_hash) * fraction)
        if not 0 < wanted < len(by_hash):
            raise BadData(
                f"{option.rpartition('.')[2]}={fraction:.4g} of {len(by_hash)} training texts "
                f"of label {label} is {wanted}: wanted at least one for each split; change {option}"
            )
        left = wanted
        for _, copies in groupby(by_hash, key=lambda entry: entry[0]):
            indices = [index for _, index in copies]
            if len(indices) <= left:
                held[indices] = True
                left -= len(indices)
        if left == wanted:
            different = len({digest for digest, _ in by_hash})
            raise BadData(
                f"none of {len(by_hash):,} training texts of label {label}, {different:,} "
                "different, can go to another split: copies stay together, and each text has "
                f"more than the {wanted:,} that {option.rpartition('.')[2]}={fraction:.4g} "
                f"allows; add more different texts or a file for the split, or change {option}"
            )
    return held
