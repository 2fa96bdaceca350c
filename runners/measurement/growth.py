"""What a curve's last growth says of a longer sequence. Torch-free."""

import math
from collections.abc import Mapping
from typing import NamedTuple


class ForetoldTime(NamedTuple):
    """The time of a length that was not measured."""

    seconds: float
    shorter: int
    longer: int
    """The lengths whose growth it continues."""


def foretold(seconds: Mapping[int, float], length: int) -> ForetoldTime | None:
    """Continue the power law between the two longest lengths that reach far enough.

    A growth is continued over no wider ratio of lengths than it was seen over, so that an error of
    one time weighs at most twice: over 4,096 and 8,192 tokens up to 16,384.

    Args:
        seconds: above 0, by length, each measured.
        length: above every one of them that counts; those from it on are left out.

    Returns:
        None where no two lengths reach so far.
    """
    before = sorted(measured for measured in seconds if measured < length)
    longer = before[-1] if before else 0
    far = [measured for measured in before if measured * length <= longer**2]
    if not far:
        return None
    shorter = far[-1]
    reach = math.log(length / longer) / math.log(longer / shorter)
    growth = seconds[longer] / seconds[shorter]
    return ForetoldTime(seconds[longer] * growth**reach, shorter, longer)
