"""Numbers among the arguments of a verb, with their limits."""

import argparse
from collections.abc import Callable


def whole(least: int, most: int) -> Callable[[str], int]:
    """Return what reads a whole number from `least` to `most`, for `add_argument(type=...)`."""

    def read(word: str) -> int:
        try:
            number = int(word) if len(word) < 20 else most + 1
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(
                f"got {word[:40]!r}; wanted a whole number from {least} to {most}"
            )
        return number

    return read
