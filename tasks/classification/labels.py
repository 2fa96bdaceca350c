"""Check of labels from files: they must be whole numbers in range; no value is converted."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt8

from lra.tasks.errors import BadData

LONGEST = 40
"""Most characters of a value in a message."""


def whole_labels(labels: Any, classes: int, where: str) -> UInt8[np.ndarray, " n"]:
    """Return labels as an array of bytes.

    Args:
        labels: An array, or a list of Python values.
        classes: Number of classes, at most 256.
        where: File that the labels come from, for messages.

    Raises:
        BadData: `labels` is empty, or a label is no whole number (1.7, 1.0, true, "1", null) or
            outside 0 … classes - 1.
    """
    wanted = f"a label must be a whole number from 0 to {classes - 1}"
    if isinstance(labels, np.ndarray):
        if labels.ndim != 1 or labels.dtype.kind not in "iu":
            raise BadData(
                f"{where}: the labels are an array of type {labels.dtype} and shape "
                f"{labels.shape}, but {wanted}"
            )
        values = labels
        outside = np.flatnonzero((labels < 0) | (labels >= classes))
    else:
        values = labels
        wrong = [i for i, label in enumerate(labels) if not _is_class(label, classes)]
        outside = np.array(wrong, int)
    if not len(values):
        raise BadData(f"{where} contains no example")
    if len(outside):
        first = int(outside[0])
        raise BadData(
            f"{where}: example {first} has the label {typed_value(values[first])}, but {wanted}; "
            "correct the label, or remove the example"
        )
    return np.asarray(values).astype(np.uint8)


def _is_class(label: object, classes: int) -> bool:
    """Return whether `label` is an int from 0 to `classes` - 1; a bool is none."""
    return type(label) is int and 0 <= label < classes


def typed_value(value: Sequence[Any] | Any) -> str:
    """Return a text with a value, shortened, and its type."""
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, int | float | str | bytes | None):
        return f"of type {type(value).__name__}"
    if isinstance(value, int) and abs(value) >= 10**LONGEST:
        return f"of {value.bit_length()} bits (int)"
    text = repr(value)
    return f"{text if len(text) <= LONGEST else text[:LONGEST] + '…'} ({type(value).__name__})"
