"""Predicts the time at a longer sequence from the last growth of a curve. Torch-free."""

import math
from collections.abc import Mapping
from typing import NamedTuple


class ForetoldTime(NamedTuple):
    """The predicted time at a length."""

    seconds: float
    shorter: int
    longer: int
    """The prediction continues the growth from the length `shorter` to the length `longer`."""


def foretold(seconds: Mapping[int, float], length: int) -> ForetoldTime | None:
    """Return the time at `length` by a power law through two shorter lengths.

    The power law is continued at most over the ratio of the two lengths, so that errors of a time
    at most double: from 4,096 and 8,192 tokens up to 16,384.

    Args:
        seconds: measured times, above 0, by length.
        length: the length to predict; only shorter lengths are used.

    Returns:
        The prediction from the longest length and the next one that is far enough from it; None if
        there are no such lengths.
    """
    shorter_lengths = sorted(measured for measured in seconds if measured < length)
    longer = shorter_lengths[-1] if shorter_lengths else 0
    # The ratio longer / measured is at least length / longer, over which the law is continued.
    far_enough = [measured for measured in shorter_lengths if measured * length <= longer**2]
    if not far_enough:
        return None
    shorter = far_enough[-1]
    exponent = math.log(length / longer) / math.log(longer / shorter)
    growth = seconds[longer] / seconds[shorter]
    return ForetoldTime(seconds[longer] * growth**exponent, shorter, longer)
