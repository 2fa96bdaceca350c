"""A validation or test split from labelled training texts: the same on every machine."""

import hashlib
from collections.abc import Sequence
from itertools import groupby

import numpy as np
from jaxtyping import Bool

from lra.tasks.errors import BadData


def held_out(
    texts: Sequence[tuple[bytes, int]],
    fraction: float,
    option: str = "task.validation_fraction",
    salt: bytes = b"",
) -> Bool[np.ndarray, " n"]:
    """Return True for the texts that leave train: `fraction` of each label, by the text's hash.

    Copies of a text stay in the same split. `texts` are (text, label); messages name `option`.
    Another `salt` chooses other texts.

    Raises:
        BadData: A label has too few texts for both splits.
    """
    moved = np.zeros(len(texts), bool)
    for label in sorted({label for _, label in texts}):
        by_hash = sorted(
            (hashlib.sha256(salt + text).digest(), index)
            for index, (text, text_label) in enumerate(texts)
            if text_label == label
        )
        wanted = round(len(by_hash) * fraction)
        if not 0 < wanted < len(by_hash):
            raise BadData(
                f"{option}={fraction:.4g} would move {wanted} of {len(by_hash)} training texts of "
                f"label {label}; wanted at least one text for each split; change {option}"
            )
        remaining = wanted
        for _, copies in groupby(by_hash, key=lambda entry: entry[0]):
            indices = [index for _, index in copies]
            if len(indices) <= remaining:  # else all copies stay in train
                moved[indices] = True
                remaining -= len(indices)
        if remaining == wanted:
            different = len({digest for digest, _ in by_hash})
            raise BadData(
                f"lra cannot split the {len(by_hash):,} training texts of label {label}, of which "
                f"{different:,} are different: copies of a text stay together, and every text has "
                f"more copies than the {wanted:,} texts that {option}={fraction:.4g} allows; add "
                f"more different texts or a file for the split, or change {option}"
            )
    return moved
