"""Labels as they come from files: whole numbers in range, or refused; none is converted."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt8

from lra.tasks.errors import BadData

LONGEST = 40
"""Characters of a value that is shown."""


def whole_labels(labels: Any, classes: int, where: str) -> UInt8[np.ndarray, " n"]:
    """Return labels as bytes.

    Args:
        labels: An array, or a list of Python values.
        classes: Their number, at most 256.
        where: They come from; opens the message.

    Raises:
        BadData: There is none, or one is no whole number (1.7, 1.0, true, "1", null) or none of
            0 … classes - 1.
    """
    wanted = f"wanted a whole number from 0 to {classes - 1}"
    if isinstance(labels, np.ndarray):
        if labels.ndim != 1 or labels.dtype.kind not in "iu":
            raise BadData(f"{where}: labels are {labels.dtype} {labels.shape}; {wanted} each")
        values = labels
        outside = np.flatnonzero((labels < 0) | (labels >= classes))
    else:
        values = labels
        outside = np.array([i for i, label in enumerate(labels) if not _suits(label, classes)], int)
    if not len(values):
        raise BadData(f"{where} contains no example")
    if len(outside):
        first = int(outside[0])
        raise BadData(
            f"{where}: example {first} has the label {typed_value(values[first])}, {wanted}: "
            "correct it, or remove the example"
        )
    return np.asarray(values).astype(np.uint8)


def _suits(label: object, classes: int) -> bool:
    return type(label) is int and 0 <= label < classes


def typed_value(value: Sequence[Any] | Any) -> str:
    """Return a value with its type, shortened."""
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, int | float | str | bytes | None):
        return f"of type {type(value).__name__}"
    if isinstance(value, int) and abs(value) >= 10**LONGEST:
        return f"of {value.bit_length()} bits (int)"
    text = repr(value)
    return f"{text if len(text) <= LONGEST else text[:LONGEST] + '…'} ({type(value).__name__})"
